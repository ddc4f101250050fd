// How fast devices are, for --split-by speed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shared/plan/device_spec.h"
#include "shared/plan/device_values.h"

namespace convoy {

/// What each device (once per id) copies per second, measured one after another in a process of its
/// own: a CUDA context stays in the process that opened it. `program` is this one's; main thread.
/// Throws StartError naming the device and what its process said.
std::vector<DeviceValue<double>> measure_speeds(const std::vector<DeviceSpec>& devices,
                                                const std::filesystem::path& program);

/// That process: writes the figure to descriptor 3. Returns the exit code.
int run_speed_measurement(const std::string& device, int parent_pid);

}  // namespace convoy
