#include "shared/stage/attention_layer.h"

#include <fmt/format.h>

#include "shared/plan/stage_memory.h"
#include "shared/stage/projection.h"

namespace convoy {

AttentionLayer::AttentionLayer(Device& device, const ModelConfig& config, int layer,
                               int page_groups)
    : config_(config) {
  const uint64_t plane_bytes =
      static_cast<uint64_t>(page_groups) * kv_page_bytes(config, device.kind());
  k_ = device.allocate(plane_bytes, fmt::format("K plane of layer {}", layer));
  v_ = device.allocate(plane_bytes, fmt::format("V plane of layer {}", layer));
}

void AttentionLayer::run(Device& device, Stream& stream, const WeightSet& weights,
                         const Workspace& work, const StepView& step, const int32_t* block_tables,
                         int pages_per_row) const {
  const int columns = step.columns();
  const int heads = config_.num_attention_heads;
  const int kv_heads = config_.num_kv_heads;
  const int dim = config_.head_dim;
  OpSet& ops = device.ops();

  normalise_residual(device, stream, config_, work, weights.vector("input_norm"), columns);

  // One row of the fused projection: [heads, 2, dim] queries and gates | [kv_heads, dim] keys |
  // [kv_heads, dim] values.
  const LinearWeight qkv = weights.linear("qkv");
  const ptrdiff_t row = qkv.out_features;
  float* const q = work.projection.as<float>();
  float* const gate = q + dim;
  float* const k = q + ptrdiff_t{2} * heads * dim;
  float* const v = k + ptrdiff_t{kv_heads} * dim;
  project(device, stream, work.normed.as<float>(), qkv, q, columns);

  const auto norm_and_rotate = [&](float* x, int count, ptrdiff_t head_stride,
                                   const float* weight) {
    ops.rms_norm(stream, {.x = x,
                          .out = x,
                          .weight = weight,
                          .rows = columns,
                          .groups = count,
                          .size = dim,
                          .x_row_stride = row,
                          .x_group_stride = head_stride,
                          .out_row_stride = row,
                          .out_group_stride = head_stride,
                          .eps = config_.rms_norm_eps});
    ops.rope(stream, {.step = step,
                      .x = x,
                      .column_stride = row,
                      .head_stride = head_stride,
                      .heads = count,
                      .rotary_dim = config_.rotary_dim,
                      .inv_freq = work.inv_freq.as<float>(),
                      .axis = work.rope_axis.as<int32_t>()});
  };
  norm_and_rotate(q, heads, ptrdiff_t{2} * dim, weights.vector("q_norm"));
  norm_and_rotate(k, kv_heads, dim, weights.vector("k_norm"));

  const KvPlanes planes{.k = k_.data(),
                        .v = v_.data(),
                        .block_tables = block_tables,
                        .max_pages_per_row = pages_per_row,
                        .kv_heads = kv_heads,
                        .head_dim = dim};
  ops.kv_write(stream, {.step = step,
                        .k = k,
                        .v = v,
                        .k_column_stride = row,
                        .v_column_stride = row,
                        .cache = planes});
  ops.paged_attention(stream, {.step = step,
                               .q = q,
                               .gate = gate,
                               .q_column_stride = row,
                               .q_head_stride = ptrdiff_t{2} * dim,
                               .gate_column_stride = row,
                               .gate_head_stride = ptrdiff_t{2} * dim,
                               .heads = heads,
                               .cache = planes,
                               .out = work.attended.as<float>()});
  project(device, stream, work.attended.as<float>(), weights.linear("out"),
          work.residual.as<float>(), columns, true);
}

}  // namespace convoy
