// SwiGLU feed-forward half of a layer.
#pragma once

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/model_config.h"
#include "shared/stage/weights.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// residual += down(silu(gate(n)) * up(n)), n = rms_norm(residual).
void run_mlp(Device& device, Stream& stream, const ModelConfig& config, const WeightSet& weights,
             const Workspace& work, const StepView& step);

}  // namespace convoy
