// How fast devices are, measured in processes of their own: a CUDA context, and what it takes of a
// card, stays in the process that opened it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/bench/bench_result.h"
#include "shared/plan/device_spec.h"
#include "shared/plan/device_values.h"

namespace convoy {

struct MeasuredDevice {
  std::string id;
  int threads = 0;  ///< of a CPU device; 0: one per physical core
};

/// measure_device() (device_speed.h) in a child, which runs `program`, this one; main thread.
/// Throws StartError naming the device and what the child said.
DeviceSpeed measure_in_child(const MeasuredDevice& device, const std::filesystem::path& program);

/// For --split-by speed: the GB that each device (once per id) copies per second, one after
/// another.
std::vector<DeviceValue<double>> measure_speeds(const std::vector<DeviceSpec>& devices,
                                                const std::filesystem::path& program);

/// The child: writes what it measured to descriptor 3. Returns the exit code.
int run_speed_measurement(const MeasuredDevice& device, int parent_pid);

}  // namespace convoy
