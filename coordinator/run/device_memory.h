// How many bytes a run may take on its devices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/plan/capacity.h"
#include "shared/plan/device_values.h"

namespace convoy {

/// What is free on the device of each stage right now, less `headroom_bytes`, and at most what
/// `limits` says for it. Devices are not opened: a card's free bytes are the driver's management
/// library's, a CPU's are what the machine has left. Where nobody tells, the device's limit, if it
/// has one. Spellings of one card get one name. Throws UsageError for a limit of a device that no
/// stage has, StartError for a card that is not here and has no limit.
std::vector<DeviceMemory> device_memory(const std::vector<DeviceSpec>& devices,
                                        const std::vector<DeviceValue<uint64_t>>& limits,
                                        std::optional<uint64_t> headroom_bytes);

/// Kept free on CUDA devices unless something else is asked for: what the driver and other programs
/// take while the run goes on.
inline constexpr uint64_t kCudaHeadroomBytes = uint64_t{512} << 20;

/// The value that `values` has for each device, in whatever spelling; nothing where it has none.
/// Throws UsageError, naming `flag`, for a value of a device that is not among `devices`.
template <typename Value>
std::vector<std::optional<Value>> values_of(const std::vector<DeviceSpec>& devices,
                                            const std::vector<DeviceValue<Value>>& values,
                                            std::string_view flag);

}  // namespace convoy
