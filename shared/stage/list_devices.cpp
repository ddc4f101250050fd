#include "shared/stage/list_devices.h"

#include <algorithm>
#if CONVOY_WITH_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif

namespace convoy {

std::vector<ListedDevice> list_devices(const std::vector<DeviceSpec>& devices) {
  std::vector<ListedDevice> listed;
#if CONVOY_WITH_CUDA
  if (std::none_of(devices.begin(), devices.end(),
                   [](const DeviceSpec& spec) { return spec.kind == DeviceKind::cuda; }))
    return listed;
  const CudaDeviceList all = list_cuda_devices();
  for (const DeviceSpec& spec : devices) {
    const bool seen = std::any_of(listed.begin(), listed.end(),
                                  [&](const ListedDevice& d) { return d.id == spec.id; });
    const auto found = std::find_if(all.devices.begin(), all.devices.end(),
                                    [&](const CudaDeviceList::Entry& device) {
                                      return spec.id == "cuda:" + std::to_string(device.ordinal) ||
                                             spec.id == device.uuid || spec.id == device.pci_id;
                                    });
    if (!seen && found != all.devices.end())
      listed.push_back({spec.id, found->name, found->uuid, found->architecture});
  }
#else
  static_cast<void>(devices);
#endif
  return listed;
}

}  // namespace convoy
