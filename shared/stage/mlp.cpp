#include "shared/stage/mlp.h"

namespace convoy {

void run_mlp(Device& device, Stream& stream, const ModelConfig& config, const WeightSet& weights,
             const Workspace& work, int columns) {
  const int hidden = config.hidden_size;
  const int size = config.intermediate_size;
  OpSet& ops = device.ops();
  ops.rms_norm(stream, {.x = work.residual.as<float>(),
                        .out = work.normed.as<float>(),
                        .weight = weights.vector("post_norm"),
                        .rows = columns,
                        .size = hidden,
                        .x_row_stride = hidden,
                        .out_row_stride = hidden,
                        .eps = config.rms_norm_eps});
  ops.linear(stream, {.x = work.normed.as<float>(),
                      .x_row_stride = hidden,
                      .weight = weights.linear("gate_up"),
                      .out = work.projection.as<float>(),
                      .out_row_stride = ptrdiff_t{2} * size,
                      .rows = columns});
  ops.swiglu(stream, {.gate_up = work.projection.as<float>(),
                      .out = work.attended.as<float>(),
                      .rows = columns,
                      .size = size});
  ops.linear(stream, {.x = work.attended.as<float>(),
                      .x_row_stride = size,
                      .weight = weights.linear("down"),
                      .out = work.residual.as<float>(),
                      .out_row_stride = hidden,
                      .rows = columns,
                      .accumulate = true});
}

}  // namespace convoy
