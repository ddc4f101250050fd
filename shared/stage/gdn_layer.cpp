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

std::byte* GdnLayer::recurrent_slot(int32_t slot) const {
  return recurrent_.as<std::byte>() + static_cast<uint64_t>(slot) * gdn_state_bytes(config_);
}

std::byte* GdnLayer::conv_slot(int32_t slot) const {
  return conv_.as<std::byte>() + static_cast<uint64_t>(slot) * conv_state_bytes(config_);
}

void GdnLayer::run(Device& device, Stream& stream, const WeightSet& weights, const Workspace& work,
                   const StepView& step) const {
  normalise_residual(device, stream, config_, work, weights.vector("input_norm"), step.columns());
  project(device, stream, work, step, work.normed.data(), weights.linear("qkvzba"),
          work.projection.data());
  if (step.position_class == PositionClass::prompt) {
    mix_prompt(device, stream, weights, work, step);
  } else {
    mix_generated(device, stream, weights, work, step);
  }
  project_onto_residual(device, stream, work, step, work.attended.data(), weights.linear("out"));
}

void GdnLayer::mix_generated(Device& device, Stream& stream, const WeightSet& weights,
                             const Workspace& work, const StepView& step) const {
  device.ops().gdn_generate(stream, {.step = step,
                                     .projection = work.projection.data(),
                                     .column_stride = weights.linear("qkvzba").out_features,
                                     .conv_weight = weights.vector("conv"),
                                     .conv_state = conv_.as<float>(),
                                     .a_log = weights.vector("a_log"),
                                     .dt_bias = weights.vector("dt_bias"),
                                     .norm = weights.vector("gdn_norm"),
                                     .eps = config_.rms_norm_eps,
                                     .state = recurrent_.as<float>(),
                                     .key_heads = config_.linear_key_heads,
                                     .value_heads = config_.linear_value_heads,
                                     .key_dim = config_.linear_key_dim,
                                     .value_dim = config_.linear_value_dim,
                                     .mixed = work.mixed.data(),
                                     .gates = work.gates.as<float>(),
                                     .out = work.attended.data()});
}

void GdnLayer::mix_prompt(Device& device, Stream& stream, const WeightSet& weights,
                          const Workspace& work, const StepView& step) const {
  const int columns = step.columns();
  const int value_heads = config_.linear_value_heads;
  const size_t bytes = work.activation_bytes;
  OpSet& ops = device.ops();

  // One row of the fused projection: u (q | k | v before the convolution) | z | b | a.
  const ptrdiff_t row = weights.linear("qkvzba").out_features;
  const void* const u = work.projection.data();
  const void* const z = activations_at(u, config_.conv_channels(), bytes);
  const void* const b = activations_at(z, config_.linear_value_channels(), bytes);
  const void* const a = activations_at(b, value_heads, bytes);
  ops.causal_conv(stream, {.step = step,
                           .u = u,
                           .u_column_stride = row,
                           .weight = weights.vector("conv"),
                           .state = conv_.as<float>(),
                           .channels = config_.conv_channels(),
                           .out = work.mixed.data()});

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
  ops.gdn_chunk(stream, {.step = step,
                         .qkv = work.mixed.data(),
                         .g = g,
                         .beta = beta,
                         .state = recurrent_.as<float>(),
                         .key_heads = config_.linear_key_heads,
                         .value_heads = value_heads,
                         .key_dim = config_.linear_key_dim,
                         .value_dim = config_.linear_value_dim,
                         .out = work.attended.data(),
                         .scratch = work.scratch.data()});
  ops.gated_rms_norm(stream, {.o = work.attended.data(),
                              .z = z,
                              .z_row_stride = row,
                              .out = work.attended.data(),
                              .weight = weights.vector("gdn_norm"),
                              .rows = columns,
                              .heads = value_heads,
                              .size = config_.linear_value_dim,
                              .eps = config_.rms_norm_eps});
}

}  // namespace convoy
