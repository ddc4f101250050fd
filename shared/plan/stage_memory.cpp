#include "shared/plan/stage_memory.h"

#include <algorithm>

#include "kernels/ops/draw_rule.h"
#include "kernels/ops/scratch.h"
#include "shared/plan/weight_table.h"

namespace convoy {
namespace {

// Rows of a tile of the prompt class's matrix products.
constexpr int kProductTileRows = 128;
// What the CUDA context, the program's kernels and the matrix library take before anything is
// allocated; measured on an H200 (docs/measurements.md).
constexpr uint64_t kCudaRuntimeBytes = uint64_t{1020} << 20;
// A card hands out memory in pieces of this size. Only planes that take all that is left come to
// any number of bytes.
constexpr uint64_t kCudaPieceBytes = uint64_t{2} << 20;

bool is_attention(const ModelConfig& config, int layer) {
  return config.layer_types[static_cast<size_t>(layer)] == LayerType::full_attention;
}

WorkspaceWidths layer_widths(const ModelConfig& c, int layer) {
  WorkspaceWidths w;
  w.hidden = c.hidden_size;
  w.projection = 2 * int64_t{c.intermediate_size};
  w.attended = c.intermediate_size;
  for (const WeightSpec& spec : layer_weight_table(c, layer)) {
    if (spec.role == "qkv" || spec.role == "qkvzba")
      w.projection = std::max<int64_t>(w.projection, spec.out_features);
    if (spec.role == "out") w.attended = std::max<int64_t>(w.attended, spec.in_features);
  }
  if (!is_attention(c, layer)) {
    w.mixed = c.conv_channels();
    w.gates = 2 * int64_t{c.linear_value_heads};
  }
  return w;
}

void widen(WorkspaceWidths& w, const WorkspaceWidths& other) {
  w.hidden = std::max(w.hidden, other.hidden);
  w.projection = std::max(w.projection, other.projection);
  w.mixed = std::max(w.mixed, other.mixed);
  w.attended = std::max(w.attended, other.attended);
  w.gates = std::max(w.gates, other.gates);
}

}  // namespace

WorkspaceWidths workspace_widths(const ModelConfig& c, LayerRange layers) {
  WorkspaceWidths w;
  for (int layer = layers.begin; layer < layers.end; ++layer) widen(w, layer_widths(c, layer));
  return w;
}

int workspace_columns(const StageLimits& limits, DeviceKind kind) {
  if (kind == DeviceKind::cpu) return limits.max_columns();
  return (limits.max_columns() + kProductTileRows - 1) / kProductTileRows * kProductTileRows;
}

uint64_t scratch_bytes(const ModelConfig& c, LayerRange layers, const StageLimits& limits,
                       DeviceKind kind) {
  uint64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    bytes = std::max<uint64_t>(
        bytes, is_attention(c, layer)
                   ? attention_scratch_bytes(kind,
                                             {.heads = c.num_attention_heads,
                                              .head_dim = c.head_dim,
                                              .max_context_tokens = limits.max_context_tokens},
                                             limits.lanes)
                   : gdn_scratch_bytes(kind,
                                       {.key_heads = c.linear_key_heads,
                                        .value_heads = c.linear_value_heads,
                                        .key_dim = c.linear_key_dim,
                                        .value_dim = c.linear_value_dim},
                                       limits.lanes, limits.max_columns()));
  }
  return bytes;
}

uint64_t kv_page_bytes(const ModelConfig& c, KvDtype dtype) {
  return static_cast<uint64_t>(c.num_kv_heads) * kv_block_bytes(dtype, c.head_dim);
}

uint64_t gdn_state_bytes(const ModelConfig& c) {
  return sizeof(float) * static_cast<uint64_t>(c.linear_value_heads) *
         static_cast<uint64_t>(c.linear_key_dim) * static_cast<uint64_t>(c.linear_value_dim);
}

uint64_t conv_state_bytes(const ModelConfig& c) {
  return sizeof(float) * static_cast<uint64_t>(c.conv_channels()) *
         static_cast<uint64_t>(c.conv_kernel - 1);
}

uint64_t page_group_bytes(const ModelConfig& c, LayerRange layers, KvDtype kv_dtype) {
  uint64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    bytes += is_attention(c, layer) ? 2 * kv_page_bytes(c, kv_dtype) : 0;
  return bytes;
}

uint64_t state_image_bytes(const ModelConfig& c, LayerRange layers) {
  uint64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    bytes += is_attention(c, layer) ? 0 : gdn_state_bytes(c) + conv_state_bytes(c);
  return bytes;
}

LayerNeeds layer_needs(const ModelConfig& c, int layer, const StageLimits& limits,
                       DeviceKind kind) {
  LayerNeeds needs;
  for (const WeightSpec& spec : layer_weight_table(c, layer))
    needs.weight_bytes += weight_bytes(spec, kind);
  const LayerRange alone{layer, layer + 1};
  needs.page_bytes = page_group_bytes(c, alone, limits.kv_dtype);
  needs.state_bytes = static_cast<uint64_t>(limits.state_slots()) * state_image_bytes(c, alone);
  needs.widths = layer_widths(c, layer);
  needs.scratch_bytes = scratch_bytes(c, alone, limits, kind);
  // The planes of keys and of values end inside a piece.
  if (kind == DeviceKind::cuda && needs.page_bytes > 0) needs.rounding_bytes = 2 * kCudaPieceBytes;
  return needs;
}

LayerNeeds& LayerNeeds::operator+=(const LayerNeeds& other) {
  weight_bytes += other.weight_bytes;
  page_bytes += other.page_bytes;
  state_bytes += other.state_bytes;
  widen(widths, other.widths);
  scratch_bytes = std::max(scratch_bytes, other.scratch_bytes);
  rounding_bytes += other.rounding_bytes;
  return *this;
}

StageMemory stage_memory_of(const ModelConfig& c, const LayerNeeds& needs,
                            const StageLimits& limits, DeviceKind kind) {
  StageMemory memory;
  memory.weight_bytes = needs.weight_bytes;
  memory.kv_bytes = static_cast<uint64_t>(limits.page_groups) * needs.page_bytes;
  memory.state_bytes = needs.state_bytes;
  const WorkspaceWidths& w = needs.widths;
  const auto columns = static_cast<uint64_t>(workspace_columns(limits, kind));
  const auto activations =
      static_cast<uint64_t>(2 * w.hidden + w.projection + w.mixed + w.attended);
  memory.workspace_bytes =
      columns * (activations * activation_bytes(kind) +
                 static_cast<uint64_t>(w.gates) * sizeof(float) + sizeof(ControlRow));
  memory.workspace_bytes += static_cast<uint64_t>(limits.lanes) * static_cast<uint64_t>(w.hidden) *
                            activation_bytes(kind);
  memory.workspace_bytes += needs.scratch_bytes;
  memory.workspace_bytes +=
      static_cast<uint64_t>(c.rotary_dim / 2) * (sizeof(float) + sizeof(int32_t));
  if (needs.page_bytes > 0) {
    memory.workspace_bytes += static_cast<uint64_t>(limits.lanes) *
                              static_cast<uint64_t>(limits.pages_per_row()) * sizeof(int32_t);
    memory.workspace_bytes += static_cast<uint64_t>(limits.max_deltas()) * sizeof(BlockTableDelta);
  }
  if (kind == DeviceKind::cuda) memory.runtime_bytes = kCudaRuntimeBytes + needs.rounding_bytes;
  return memory;
}

StageMemory stage_memory(const ModelConfig& c, LayerRange layers, const StageLimits& limits,
                         DeviceKind kind) {
  LayerNeeds needs;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    needs += layer_needs(c, layer, limits, kind);
  return stage_memory_of(c, needs, limits, kind);
}

StageMemory root_memory(const ModelConfig& c, const StageLimits& limits, DeviceKind kind) {
  StageMemory memory;
  for (const WeightSpec& spec : root_weight_table(c))
    memory.weight_bytes += weight_bytes(spec, kind);
  const auto rows = static_cast<uint64_t>(limits.lanes);
  const auto hidden = static_cast<uint64_t>(c.hidden_size);
  const auto vocab = static_cast<uint64_t>(c.vocab_size);
  // token ids of the widest step; last columns and their norm; logits; chosen and drawn ids, and
  // how
  memory.workspace_bytes = static_cast<uint64_t>(limits.max_columns()) * sizeof(int32_t) +
                           rows * 2 * hidden * activation_bytes(kind) +
                           rows * vocab * sizeof(float) +
                           rows * (2 * sizeof(int32_t) + sizeof(DrawRule));
  return memory;
}

}  // namespace convoy
