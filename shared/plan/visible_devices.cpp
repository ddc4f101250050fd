#include "shared/plan/visible_devices.h"

#include <algorithm>

namespace convoy {

std::vector<std::string> visible_devices(const DeviceSpec& own,
                                         const std::vector<DeviceSpec>& others) {
  std::vector<DeviceSpec> devices{own};
  devices.insert(devices.end(), others.begin(), others.end());
  std::vector<std::string> seen;
  std::string entry = "CUDA_VISIBLE_DEVICES=";
  for (const DeviceSpec& device : devices) {
    if (device.uuid.empty()) return {};
    if (std::find(seen.begin(), seen.end(), device.uuid) != seen.end()) continue;
    entry += (seen.empty() ? "" : ",") + device.uuid;
    seen.push_back(device.uuid);
  }
  return {entry};
}

std::vector<std::string> visible_devices_of_stage(const std::vector<DeviceSpec>& stages,
                                                  size_t rank) {
  const size_t count = stages.size();
  return visible_devices(stages[rank],
                         {stages[(rank + count - 1) % count], stages[(rank + 1) % count]});
}

}  // namespace convoy
