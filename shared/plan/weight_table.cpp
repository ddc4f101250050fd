#include "shared/plan/weight_table.h"

namespace convoy {
namespace {

constexpr uint64_t kCpuPanelRows = 64;

void add_attention(const ModelConfig& c, std::vector<WeightSpec>& table) {
  const int q_rows =
      2 * c.num_attention_heads * c.head_dim;  // queries and gates, interleaved per head
  const int kv_rows = c.num_kv_heads * c.head_dim;
  table.push_back(
      {"qkv",
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
       WeightForm::linear,
       q_rows + 2 * kv_rows,
       c.hidden_size});
  table.push_back({"q_norm", {"self_attn.q_norm.weight"}, WeightForm::vector, c.head_dim, 1});
  table.push_back({"k_norm", {"self_attn.k_norm.weight"}, WeightForm::vector, c.head_dim, 1});
  table.push_back({"out",
                   {"self_attn.o_proj.weight"},
                   WeightForm::linear,
                   c.hidden_size,
                   c.num_attention_heads * c.head_dim});
}

void add_gdn(const ModelConfig& c, std::vector<WeightSpec>& table) {
  const int channels = c.conv_channels();
  const int value_size = c.linear_value_heads * c.linear_value_dim;
  table.push_back({"qkvzba",
                   {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight",
                    "linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"},
                   WeightForm::linear,
                   channels + value_size + 2 * c.linear_value_heads,
                   c.hidden_size});
  table.push_back(
      {"conv", {"linear_attn.conv1d.weight"}, WeightForm::vector, channels * c.conv_kernel, 1});
  table.push_back({"a_log", {"linear_attn.A_log"}, WeightForm::vector, c.linear_value_heads, 1});
  table.push_back(
      {"dt_bias", {"linear_attn.dt_bias"}, WeightForm::vector, c.linear_value_heads, 1});
  table.push_back(
      {"gdn_norm", {"linear_attn.norm.weight"}, WeightForm::vector, c.linear_value_dim, 1});
  table.push_back(
      {"out", {"linear_attn.out_proj.weight"}, WeightForm::linear, c.hidden_size, value_size});
}

}  // namespace

std::vector<WeightSpec> layer_weight_table(const ModelConfig& c, int layer) {
  std::vector<WeightSpec> table;
  table.push_back({"input_norm", {"input_layernorm.weight"}, WeightForm::vector, c.hidden_size, 1});
  if (c.layer_types[static_cast<size_t>(layer)] == LayerType::full_attention) {
    add_attention(c, table);
  } else {
    add_gdn(c, table);
  }
  table.push_back(
      {"post_norm", {"post_attention_layernorm.weight"}, WeightForm::vector, c.hidden_size, 1});
  table.push_back({"gate_up",
                   {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
                   WeightForm::linear,
                   2 * c.intermediate_size,
                   c.hidden_size});
  table.push_back(
      {"down", {"mlp.down_proj.weight"}, WeightForm::linear, c.hidden_size, c.intermediate_size});
  return table;
}

std::vector<WeightSpec> root_weight_table(const ModelConfig& c) {
  std::vector<WeightSpec> table;
  if (!c.tie_word_embeddings) {
    table.push_back(
        {"embedding", {"embed_tokens.weight"}, WeightForm::table, c.vocab_size, c.hidden_size});
  }
  table.push_back({"final_norm", {"norm.weight"}, WeightForm::vector, c.hidden_size, 1});
  table.push_back({"head",
                   {c.tie_word_embeddings ? "embed_tokens.weight" : "lm_head.weight"},
                   WeightForm::linear,
                   c.vocab_size,
                   c.hidden_size});
  return table;
}

uint64_t weight_bytes(const WeightSpec& spec, DeviceKind kind) {
  const auto out = static_cast<uint64_t>(spec.out_features);
  const auto in = static_cast<uint64_t>(spec.in_features);
  switch (spec.form) {
    case WeightForm::vector:
      return out * in * sizeof(float);
    case WeightForm::table:
      return out * in * sizeof(uint16_t);
    case WeightForm::linear:
      break;
  }
  const uint64_t rows =
      kind == DeviceKind::cpu ? (out + kCpuPanelRows - 1) / kCpuPanelRows * kCpuPanelRows : out;
  return rows * in * sizeof(uint16_t);
}

}  // namespace convoy
