#include "shared/stage/list_devices.h"

#include <algorithm>
#include <utility>

#include "shared/stage/open_device.h"
#if CONVOY_WITH_CUDA
#include <fmt/format.h>

#include <cstdlib>

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

void require_listed(const std::vector<DeviceSpec>& devices) {
  const std::vector<ListedDevice> listed = list_devices(devices);
  for (const DeviceSpec& device : devices) {
    const bool found = std::any_of(listed.begin(), listed.end(),
                                   [&](const ListedDevice& d) { return d.id == device.id; });
    // Opening it says why it is not there.
    if (device.kind == DeviceKind::cuda && !found)
      static_cast<void>(open_device(device.id, 0, device.uuid));
  }
}

std::vector<DeviceSpec> identify_devices(std::vector<DeviceSpec> devices) {
  const std::vector<ListedDevice> listed = list_devices(devices);
  for (DeviceSpec& device : devices) {
    const auto found = std::find_if(listed.begin(), listed.end(),
                                    [&](const ListedDevice& d) { return d.id == device.id; });
    const bool whole = found != listed.end() && found->name.find(" MIG ") == std::string::npos;
    if (whole) device.uuid = found->uuid;
  }
  return devices;
}

std::vector<DeviceSpec> all_gpus() {
  std::vector<DeviceSpec> gpus;
#if CONVOY_WITH_CUDA
  for (const CudaDeviceList::Entry& device : list_cuda_devices().devices)
    gpus.push_back({DeviceKind::cuda, "cuda:" + std::to_string(device.ordinal)});
#endif
  return identify_devices(std::move(gpus));
}

std::string why_no_gpus() {
#if CONVOY_WITH_CUDA
  const CudaDeviceList list = list_cuda_devices();
  if (!list.has_driver || list.error.empty()) return "";
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? list.error
                            : fmt::format("{} (CUDA_VISIBLE_DEVICES={})", list.error, visible);
#else
  return "";
#endif
}

std::string uuid_of(const DeviceSpec& device) {
  const std::vector<ListedDevice> listed = list_devices({device});
  return listed.empty() ? device.id : listed.front().uuid;
}

}  // namespace convoy
