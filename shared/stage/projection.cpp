#include "shared/stage/projection.h"

namespace convoy {

void normalise_residual(Device& device, Stream& stream, const ModelConfig& config,
                        const Workspace& work, const float* weight, int columns) {
  device.ops().rms_norm(stream, {.x = work.residual.as<float>(),
                                 .out = work.normed.as<float>(),
                                 .weight = weight,
                                 .rows = columns,
                                 .size = config.hidden_size,
                                 .x_row_stride = config.hidden_size,
                                 .out_row_stride = config.hidden_size,
                                 .eps = config.rms_norm_eps});
}

void project(Device& device, Stream& stream, const float* x, LinearWeight weight, float* out,
             int columns, bool accumulate) {
  device.ops().linear(stream, {.x = x,
                               .x_row_stride = weight.in_features,
                               .weight = weight,
                               .out = out,
                               .out_row_stride = weight.out_features,
                               .rows = columns,
                               .accumulate = accumulate});
}

}  // namespace convoy
