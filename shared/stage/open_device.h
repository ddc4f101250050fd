// Opens the device that --devices names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {

/// `id` as DeviceSpec::id; `threads` for CPU devices, 0: one per physical core. No CUDA call
/// happens before a CUDA device is asked for. Throws StartError for a device that this build or
/// this machine does not have.
std::unique_ptr<Device> open_device(const std::string& id, int threads);

/// What --devices may name of this machine's CUDA devices: "cuda:0", …; empty where there are none
/// or this build has no CUDA. Opens none.
std::vector<std::string> cuda_device_ids();

/// Whether the driver says that `from` can read and write the memory of `to`, both CUDA devices of
/// this machine, and not the same one.
bool driver_allows_peer_access(const DeviceInfo& from, const DeviceInfo& to);

}  // namespace convoy
