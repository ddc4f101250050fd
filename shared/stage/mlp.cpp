#include "shared/stage/mlp.h"

#include "shared/stage/projection.h"

namespace convoy {

void run_mlp(Device& device, Stream& stream, const ModelConfig& config, const WeightSet& weights,
             const Workspace& work, int columns) {
  const int size = config.intermediate_size;
  OpSet& ops = device.ops();
  normalise_residual(device, stream, config, work, weights.vector("post_norm"), columns);
  project(device, stream, work.normed.as<float>(), weights.linear("gate_up"),
          work.projection.as<float>(), columns);
  ops.swiglu(stream, {.gate_up = work.projection.as<float>(),
                      .out = work.attended.as<float>(),
                      .rows = columns,
                      .size = size});
  project(device, stream, work.attended.as<float>(), weights.linear("down"),
          work.residual.as<float>(), columns, true);
}

}  // namespace convoy
