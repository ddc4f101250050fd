#include "shared/stage/attention_layer.h"

#include <fmt/format.h>

#include "shared/plan/stage_memory.h"
#include "shared/stage/projection.h"

namespace convoy {

AttentionLayer::AttentionLayer(Device& device, const ModelConfig& config, int layer,
                               int page_groups, KvDtype kv_dtype)
    : config_(config), kv_dtype_(kv_dtype), page_bytes_(kv_page_bytes(config, kv_dtype)) {
  const uint64_t plane_bytes = static_cast<uint64_t>(page_groups) * page_bytes_;
  k_ = device.allocate(plane_bytes, fmt::format("K plane of layer {}", layer));
  v_ = device.allocate(plane_bytes, fmt::format("V plane of layer {}", layer));
}

void AttentionLayer::run(Device& device, Stream& stream, const WeightSet& weights,
                         const Workspace& work, const StepView& step, const int32_t* block_tables,
                         int pages_per_row) const {
  const int heads = config_.num_attention_heads;
  const int dim = config_.head_dim;
  OpSet& ops = device.ops();

  normalise_residual(device, stream, config_, work, weights.vector("input_norm"), step.columns());

  // One row of the fused projection: [heads, 2, dim] queries and gates | [kv_heads, dim] keys |
  // [kv_heads, dim] values.
  const LinearWeight qkv = weights.linear("qkv");
  const ptrdiff_t row = qkv.out_features;
  void* const q = work.projection.data();
  project(device, stream, work, step, work.normed.data(), qkv, q);

  const KvPlanes planes{.k = k_.data(),
                        .v = v_.data(),
                        .block_tables = block_tables,
                        .max_pages_per_row = pages_per_row,
                        .kv_heads = config_.num_kv_heads,
                        .head_dim = dim,
                        .dtype = kv_dtype_};
  ops.attention_inputs(stream, {.step = step,
                                .qkv = q,
                                .column_stride = row,
                                .heads = heads,
                                .q_norm = weights.vector("q_norm"),
                                .k_norm = weights.vector("k_norm"),
                                .eps = config_.rms_norm_eps,
                                .rotary_dim = config_.rotary_dim,
                                .inv_freq = work.inv_freq.as<float>(),
                                .axis = work.rope_axis.as<int32_t>(),
                                .cache = planes});
  ops.paged_attention(stream, {.step = step,
                               .q = q,
                               .gate = activations_at(q, dim, work.activation_bytes),
                               .q_column_stride = row,
                               .q_head_stride = ptrdiff_t{2} * dim,
                               .gate_column_stride = row,
                               .gate_head_stride = ptrdiff_t{2} * dim,
                               .heads = heads,
                               .cache = planes,
                               .out = work.attended.data(),
                               .scratch = work.scratch.data()});
  project_onto_residual(device, stream, work, step, work.attended.data(), weights.linear("out"));
}

}  // namespace convoy
