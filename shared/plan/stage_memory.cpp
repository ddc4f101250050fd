#include "shared/plan/stage_memory.h"

#include <algorithm>

#include "shared/plan/weight_table.h"

namespace convoy {
namespace {

bool is_attention(const ModelConfig& config, int layer) {
  return config.layer_types[static_cast<size_t>(layer)] == LayerType::full_attention;
}

}  // namespace

WorkspaceWidths workspace_widths(const ModelConfig& c, LayerRange layers) {
  WorkspaceWidths w;
  w.hidden = c.hidden_size;
  w.projection = 2 * int64_t{c.intermediate_size};
  w.attended = c.intermediate_size;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (const WeightSpec& spec : layer_weight_table(c, layer)) {
      if (spec.role == "qkv" || spec.role == "qkvzba")
        w.projection = std::max<int64_t>(w.projection, spec.out_features);
      if (spec.role == "out") w.attended = std::max<int64_t>(w.attended, spec.in_features);
    }
    if (!is_attention(c, layer)) {
      w.mixed = c.conv_channels();
      w.gates = 2 * int64_t{c.linear_value_heads};
    }
  }
  return w;
}

uint64_t kv_page_bytes(const ModelConfig& c, DeviceKind kind) {
  const uint64_t value_bytes = kind == DeviceKind::cpu ? sizeof(float) : sizeof(uint16_t);
  return uint64_t{kPageTokens} * static_cast<uint64_t>(c.num_kv_heads) *
         static_cast<uint64_t>(c.head_dim) * value_bytes;
}

uint64_t gdn_state_bytes(const ModelConfig& c) {
  return sizeof(float) * static_cast<uint64_t>(c.linear_value_heads) *
         static_cast<uint64_t>(c.linear_key_dim) * static_cast<uint64_t>(c.linear_value_dim);
}

uint64_t conv_state_bytes(const ModelConfig& c) {
  return sizeof(float) * static_cast<uint64_t>(c.conv_channels()) *
         static_cast<uint64_t>(c.conv_kernel - 1);
}

StageMemory stage_memory(const ModelConfig& c, LayerRange layers, const StageLimits& limits,
                         DeviceKind kind) {
  StageMemory memory;
  uint64_t attention_layers = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (const WeightSpec& spec : layer_weight_table(c, layer))
      memory.weight_bytes += weight_bytes(spec, kind);
    if (is_attention(c, layer)) {
      ++attention_layers;
      memory.kv_bytes += 2 * static_cast<uint64_t>(limits.page_groups) * kv_page_bytes(c, kind);
    } else {
      memory.state_bytes +=
          static_cast<uint64_t>(limits.state_slots()) * (gdn_state_bytes(c) + conv_state_bytes(c));
    }
  }
  const WorkspaceWidths w = workspace_widths(c, layers);
  const auto columns = static_cast<uint64_t>(limits.max_columns());
  const auto values =
      static_cast<uint64_t>(2 * w.hidden + w.projection + w.mixed + w.attended + w.gates);
  memory.workspace_bytes = columns * (values * sizeof(float) + sizeof(ControlRow));
  memory.workspace_bytes +=
      static_cast<uint64_t>(limits.lanes) * static_cast<uint64_t>(w.hidden) * sizeof(float);
  memory.workspace_bytes +=
      static_cast<uint64_t>(c.rotary_dim / 2) * (sizeof(float) + sizeof(int32_t));
  if (attention_layers > 0) {
    memory.workspace_bytes += static_cast<uint64_t>(limits.lanes) *
                              static_cast<uint64_t>(limits.pages_per_row()) * sizeof(int32_t);
  }
  return memory;
}

StageMemory root_memory(const ModelConfig& c, const StageLimits& limits, DeviceKind kind) {
  StageMemory memory;
  for (const WeightSpec& spec : root_weight_table(c))
    memory.weight_bytes += weight_bytes(spec, kind);
  const auto rows = static_cast<uint64_t>(limits.lanes);
  const auto hidden = static_cast<uint64_t>(c.hidden_size);
  const auto vocab = static_cast<uint64_t>(c.vocab_size);
  // token ids of the widest step; last columns and their norm; logits; sampled ids
  memory.workspace_bytes = static_cast<uint64_t>(limits.max_columns()) * sizeof(int32_t) +
                           rows * (2 * hidden + vocab) * sizeof(float) + rows * sizeof(int32_t);
  return memory;
}

}  // namespace convoy
