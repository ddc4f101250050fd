// What a device does at best.
#pragma once

#include <string>

#include "coordinator/bench/bench_result.h"

namespace convoy {

/// Copies and multiplies on the device for a moment and takes the best of several rounds: that is
/// what a run is compared with. Opens the device; a CUDA device keeps its context until this
/// process ends, so commands call measure_in_child() (measured_speeds.h). Throws StartError: no
/// such device, no memory.
DeviceSpeed measure_device(const std::string& id, int threads);

}  // namespace convoy
