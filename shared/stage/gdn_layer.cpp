#include "shared/stage/gdn_layer.h"

#include <fmt/format.h>

#include "shared/plan/stage_memory.h"
#include "shared/stage/projection.h"

namespace convoy {

GdnLayer::GdnLayer(Device& device, const ModelConfig& config, int layer, int state_slots)
    : config_(config) {
  const auto slots = static_cast<uint64_t>(state_slots);
  recurrent_ = device.allocate(slots * gdn_state_bytes(config),
                               fmt::format("recurrent state of layer {}", layer));
  conv_ = device.allocate(slots * conv_state_bytes(config),
                          fmt::format("convolution state of layer {}", layer));
}

void GdnLayer::run(Device& device, Stream& stream, const WeightSet& weights, const Workspace& work,
                   const StepView& step) const {
  const int columns = step.columns();
  const int value_heads = config_.linear_value_heads;
  const int value_size = value_heads * config_.linear_value_dim;
  const int channels = config_.conv_channels();
  OpSet& ops = device.ops();

  normalise_residual(device, stream, config_, work, weights.vector("input_norm"), columns);

  // One row of the fused projection: u (q | k | v before the convolution) | z | b | a.
  const LinearWeight projection = weights.linear("qkvzba");
  const ptrdiff_t row = projection.out_features;
  float* const u = work.projection.as<float>();
  float* const z = u + channels;
  float* const b = z + value_size;
  float* const a = b + value_heads;
  project(device, stream, work.normed.as<float>(), projection, u, columns);

  ops.causal_conv(stream, {.step = step,
                           .u = u,
                           .u_column_stride = row,
                           .weight = weights.vector("conv"),
                           .state = conv_.as<float>(),
                           .channels = channels,
                           .out = work.mixed.as<float>()});

  float* const g = work.gates.as<float>();
  float* const beta = g + ptrdiff_t{columns} * value_heads;
  ops.gdn_gates(stream, {.a = a,
                         .b = b,
                         .a_row_stride = row,
                         .b_row_stride = row,
                         .a_log = weights.vector("a_log"),
                         .dt_bias = weights.vector("dt_bias"),
                         .rows = columns,
                         .value_heads = value_heads,
                         .g = g,
                         .beta = beta});

  const GdnArgs rule{.step = step,
                     .qkv = work.mixed.as<float>(),
                     .g = g,
                     .beta = beta,
                     .state = recurrent_.as<float>(),
                     .key_heads = config_.linear_key_heads,
                     .value_heads = value_heads,
                     .key_dim = config_.linear_key_dim,
                     .value_dim = config_.linear_value_dim,
                     .out = work.attended.as<float>()};
  if (step.position_class == PositionClass::prompt) {
    ops.gdn_chunk(stream, rule);
  } else {
    ops.gdn_recurrent(stream, rule);
  }

  ops.gated_rms_norm(stream, {.o = work.attended.as<float>(),
                              .z = z,
                              .z_row_stride = row,
                              .out = work.attended.as<float>(),
                              .weight = weights.vector("gdn_norm"),
                              .rows = columns,
                              .heads = value_heads,
                              .size = config_.linear_value_dim,
                              .eps = config_.rms_norm_eps});
  project(device, stream, work.attended.as<float>(), weights.linear("out"),
          work.residual.as<float>(), columns, true);
}

}  // namespace convoy
