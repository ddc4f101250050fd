#include "shared/stage/projection.h"

namespace convoy {
namespace {

LinearArgs dense_product(const Workspace& work, const StepView& step, const void* x,
                         LinearWeight weight, void* out, bool accumulate) {
  return {.x = x,
          .x_row_stride = weight.in_features,
          .weight = weight,
          .out = out,
          .out_row_stride = weight.out_features,
          .rows = step.columns(),
          .accumulate = accumulate,
          .position_class = step.position_class,
          .padded_rows = work.padded_columns};
}

}  // namespace

void normalise_residual(Device& device, Stream& stream, const ModelConfig& config,
                        const Workspace& work, const float* weight, int columns) {
  device.ops().rms_norm(stream, {.x = work.residual.data(),
                                 .out = work.normed.data(),
                                 .weight = weight,
                                 .rows = columns,
                                 .size = config.hidden_size,
                                 .x_row_stride = config.hidden_size,
                                 .out_row_stride = config.hidden_size,
                                 .eps = config.rms_norm_eps});
}

void project(Device& device, Stream& stream, const Workspace& work, const StepView& step,
             const void* x, LinearWeight weight, void* out) {
  device.ops().linear(stream, dense_product(work, step, x, weight, out, false));
}

void project_onto_residual(Device& device, Stream& stream, const Workspace& work,
                           const StepView& step, const void* x, LinearWeight weight) {
  device.ops().linear(stream, dense_product(work, step, x, weight, work.residual.data(), true));
}

}  // namespace convoy
