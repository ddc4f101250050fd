// Which of the machine's cards a process sees.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/device_spec.h"

namespace convoy {

/// The environment's entry for a process that computes on `own` and opens memory of `others`:
/// CUDA_VISIBLE_DEVICES with UUIDs, its own card first, each once. Empty for a CPU device and where
/// a UUID is not known: such a process sees what its parent sees.
std::vector<std::string> visible_devices(const DeviceSpec& own,
                                         const std::vector<DeviceSpec>& others);

/// The same for one stage of a pipeline, whose neighbours are the stages before and after it; the
/// last one hands over to the first. `stages`: the devices by rank.
std::vector<std::string> visible_devices_of_stage(const std::vector<DeviceSpec>& stages,
                                                  size_t rank);

}  // namespace convoy
