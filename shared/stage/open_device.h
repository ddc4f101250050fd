// Opens the device that --devices names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {

/// `id` and `uuid` as in DeviceSpec: `uuid`, where there is one, says which card it is. `threads`
/// for CPU devices, 0: one per physical core. No CUDA call happens before a CUDA device is asked
/// for. Throws StartError for a device that this build or this machine does not have.
std::unique_ptr<Device> open_device(const std::string& id, int threads,
                                    const std::string& uuid = {});

/// Whether the driver says that `from` can read and write the memory of `to`, both CUDA devices of
/// this machine, and not the same one.
bool driver_allows_peer_access(const DeviceInfo& from, const DeviceInfo& to);

}  // namespace convoy
