// Opens the device that --devices names.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/device.h"

namespace convoy {

/// `id` as DeviceSpec::id; `threads` for CPU devices, 0: one per physical core. No CUDA call
/// happens before a CUDA device is asked for. Throws StartError for a device that this build or
/// this machine does not have.
std::unique_ptr<Device> open_device(const std::string& id, int threads);

}  // namespace convoy
