// --devices auto.
#pragma once

#include "coordinator/run/engine_run.h"

namespace convoy {

/// The fewest GPUs of this machine that hold the model and the context of `options`, and says on
/// stderr which and why; one "cpu" where there is no GPU, and with options.attach, whose pool has
/// the other stages. Looks at config.json only. `options.devices` is not looked at; of its memory
/// limits those of GPUs that were not taken are removed. Throws UsageError or StartError.
std::vector<DeviceSpec> automatic_devices(RunOptions& options);

}  // namespace convoy
