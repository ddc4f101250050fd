// What the driver says of the devices that --devices names.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/device_spec.h"
#include "shared/plan/mixed_architectures.h"

namespace convoy {

/// The CUDA devices among `devices`, in their order, each once per id. Opens none of them. One that
/// is not there, and all of them where this build or this machine has no CUDA, is left out: opening
/// it says why.
std::vector<ListedDevice> list_devices(const std::vector<DeviceSpec>& devices);

/// Throws StartError, which names it and says why, for a CUDA device among `devices` that
/// list_devices() leaves out.
void require_listed(const std::vector<DeviceSpec>& devices);

/// `devices` with the UUIDs of those that list_devices() finds. A slice of a card (MIG) gets none:
/// CUDA_VISIBLE_DEVICES names it in another way.
std::vector<DeviceSpec> identify_devices(std::vector<DeviceSpec> devices);

/// Every CUDA device of this machine by its number, identified; empty where there are none or this
/// build has no CUDA.
std::vector<DeviceSpec> all_gpus();

/// Why a driver lists no device: what it says, and what CUDA_VISIBLE_DEVICES hides. Empty where it
/// lists one, and where there is no driver or this build has no CUDA.
std::string why_no_gpus();

/// The card's UUID; its id where the driver does not list it.
std::string uuid_of(const DeviceSpec& device);

}  // namespace convoy
