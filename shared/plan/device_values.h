// Values that people give per device: --memory-limit 0=20GiB,1=8GiB.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/plan/device_spec.h"

namespace convoy {

template <typename Value>
struct DeviceValue {
  DeviceSpec device;
  Value value{};
};

/// "DEVICE=SIZE,…": a device as --devices has it; a size is a number, fractions allowed, with B,
/// KiB, MiB, GiB or TiB. `source` names the flag or variable in errors. Throws UsageError.
std::vector<DeviceValue<uint64_t>> parse_memory_limits(std::string_view text,
                                                       std::string_view source);

/// "DEVICE=SPEED,…": any positive numbers, only their ratios count. Throws UsageError.
std::vector<DeviceValue<double>> parse_device_speeds(std::string_view text,
                                                     std::string_view source);

}  // namespace convoy
