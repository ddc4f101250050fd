// The two dense steps that every half of a layer begins or ends with.
#pragma once

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/model_config.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// work.normed = zero-centred RMS norm of work.residual, [columns, hidden]. `weight`: [hidden].
void normalise_residual(Device& device, Stream& stream, const ModelConfig& config,
                        const Workspace& work, const float* weight, int columns);

/// out = x W^T over the step's columns: x [columns, in_features] and out [columns, out_features]
/// are dense areas of the workspace.
void project(Device& device, Stream& stream, const Workspace& work, const StepView& step,
             const void* x, LinearWeight weight, void* out);
/// work.residual += x W^T.
void project_onto_residual(Device& device, Stream& stream, const Workspace& work,
                           const StepView& step, const void* x, LinearWeight weight);

}  // namespace convoy
