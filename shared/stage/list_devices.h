// What the driver says of the devices that --devices names.
#pragma once

#include <vector>

#include "shared/plan/device_spec.h"
#include "shared/plan/mixed_architectures.h"

namespace convoy {

/// The CUDA devices among `devices`, in their order, each once per id. Opens none of them. One that
/// is not there, and all of them where this build or this machine has no CUDA, is left out: opening
/// it says why.
std::vector<ListedDevice> list_devices(const std::vector<DeviceSpec>& devices);

}  // namespace convoy
