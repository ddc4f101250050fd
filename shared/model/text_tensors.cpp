#include "shared/model/text_tensors.h"

namespace convoy {
namespace {

void add_full_attention(const ModelConfig& config, std::vector<RequiredTensor>& tensors) {
  const int64_t hidden = config.hidden_size;
  const int64_t head = config.head_dim;
  const int64_t queries = config.num_attention_heads * head;
  const int64_t keys = config.num_kv_heads * head;
  // Per head: head_dim query rows, then head_dim gate rows.
  tensors.push_back({"self_attn.q_proj.weight", {2 * queries, hidden}});
  tensors.push_back({"self_attn.k_proj.weight", {keys, hidden}});
  tensors.push_back({"self_attn.v_proj.weight", {keys, hidden}});
  tensors.push_back({"self_attn.o_proj.weight", {hidden, queries}});
  tensors.push_back({"self_attn.q_norm.weight", {head}, true});
  tensors.push_back({"self_attn.k_norm.weight", {head}, true});
}

void add_linear_attention(const ModelConfig& config, std::vector<RequiredTensor>& tensors) {
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.linear_value_heads;
  const int64_t values = config.linear_value_channels();
  const int64_t channels = config.conv_channels();
  // Rows and channels: all queries, all keys, all values.
  tensors.push_back({"linear_attn.in_proj_qkv.weight", {channels, hidden}});
  tensors.push_back({"linear_attn.in_proj_z.weight", {values, hidden}});
  tensors.push_back({"linear_attn.in_proj_b.weight", {heads, hidden}});
  tensors.push_back({"linear_attn.in_proj_a.weight", {heads, hidden}});
  tensors.push_back({"linear_attn.conv1d.weight", {channels, 1, config.conv_kernel}, true});
  tensors.push_back({"linear_attn.A_log", {heads}, true});
  tensors.push_back({"linear_attn.dt_bias", {heads}, true});
  tensors.push_back({"linear_attn.norm.weight", {config.linear_value_dim}, true});
  tensors.push_back({"linear_attn.out_proj.weight", {hidden, values}});
}

}  // namespace

std::vector<RequiredTensor> layer_tensors(const ModelConfig& config, int layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  std::vector<RequiredTensor> tensors;
  tensors.push_back({"input_layernorm.weight", {hidden}, true});
  if (config.layer_types[static_cast<std::size_t>(layer)] == LayerType::full_attention) {
    add_full_attention(config, tensors);
  } else {
    add_linear_attention(config, tensors);
  }
  tensors.push_back({"post_attention_layernorm.weight", {hidden}, true});
  tensors.push_back({"mlp.gate_proj.weight", {intermediate, hidden}});
  tensors.push_back({"mlp.up_proj.weight", {intermediate, hidden}});
  tensors.push_back({"mlp.down_proj.weight", {hidden, intermediate}});
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  for (RequiredTensor& tensor : tensors) tensor.name.insert(0, prefix);
  return tensors;
}

std::vector<RequiredTensor> root_tensors(const ModelConfig& config) {
  const int64_t vocab = config.vocab_size;
  const int64_t hidden = config.hidden_size;
  std::vector<RequiredTensor> tensors;
  tensors.push_back({"embed_tokens.weight", {vocab, hidden}});
  tensors.push_back({"norm.weight", {hidden}, true});
  if (!config.tie_word_embeddings) tensors.push_back({"lm_head.weight", {vocab, hidden}});
  return tensors;
}

}  // namespace convoy
