#include "shared/stage/mlp.h"

#include "shared/stage/projection.h"

namespace convoy {

void run_mlp(Device& device, Stream& stream, const ModelConfig& config, const WeightSet& weights,
             const Workspace& work, const StepView& step) {
  normalise_residual(device, stream, config, work, weights.vector("post_norm"), step.columns());
  project(device, stream, work, step, work.normed.data(), weights.linear("gate_up"),
          work.projection.data());
  device.ops().swiglu(stream, {.gate_up = work.projection.data(),
                               .out = work.attended.data(),
                               .rows = step.columns(),
                               .size = config.intermediate_size});
  project_onto_residual(device, stream, work, step, work.attended.data(), weights.linear("down"));
}

}  // namespace convoy
