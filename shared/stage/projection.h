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

/// out = x W^T, or out += x W^T, over dense rows: x [columns, in_features], out [columns,
/// out_features].
void project(Device& device, Stream& stream, const float* x, LinearWeight weight, float* out,
             int columns, bool accumulate = false);

}  // namespace convoy
