#include "coordinator/run/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/exit_code.h"
#include "shared/control/gpu_sensor.h"
#include "shared/ipc/host_memory.h"
#include "shared/stage/list_devices.h"

namespace convoy {
namespace {

uint64_t minus(uint64_t bytes, uint64_t headroom) {
  return bytes > headroom ? bytes - headroom : 0;
}

void require_card(const DeviceSpec& device) {
  try {
    require_listed({device});
  } catch (const StartError& error) {
    throw StartError(
        fmt::format("{}; convoy plan counts with a card that is not here where --memory-limit says "
                    "how much may be taken there",
                    error.what()));
  }
}

}  // namespace

template <typename Value>
std::vector<std::optional<Value>> values_of(const std::vector<DeviceSpec>& devices,
                                            const std::vector<DeviceValue<Value>>& values,
                                            std::string_view flag) {
  std::vector<std::optional<Value>> result(devices.size());
  for (const auto& [named, value] : values) {
    const std::string uuid = uuid_of(named);
    bool found = false;
    for (size_t i = 0; i < devices.size(); ++i) {
      if (uuid_of(devices[i]) != uuid) continue;
      result[i] = value;
      found = true;
    }
    if (!found) {
      throw UsageError(
          fmt::format("{} names {}, which is not among the run's devices", flag, named.id));
    }
  }
  return result;
}
template std::vector<std::optional<uint64_t>> values_of(const std::vector<DeviceSpec>&,
                                                        const std::vector<DeviceValue<uint64_t>>&,
                                                        std::string_view);
template std::vector<std::optional<double>> values_of(const std::vector<DeviceSpec>&,
                                                      const std::vector<DeviceValue<double>>&,
                                                      std::string_view);

std::vector<DeviceMemory> device_memory(const std::vector<DeviceSpec>& devices,
                                        const std::vector<DeviceValue<uint64_t>>& limits,
                                        std::optional<uint64_t> headroom_bytes) {
  const bool cuda = devices.front().kind == DeviceKind::cuda;
  const uint64_t headroom = headroom_bytes.value_or(cuda ? kCudaHeadroomBytes : 0);
  const auto most = values_of(devices, limits, "--memory-limit");
  const auto sensor = cuda ? GpuSensor::open() : nullptr;
  // What is free is asked once per device: stages of one device have to see the same number.
  std::map<std::string, DeviceMemory> seen;
  std::vector<DeviceMemory> memory;
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string uuid = uuid_of(devices[i]);
    if (const auto same = seen.find(uuid); same != seen.end()) {
      memory.push_back(same->second);
      continue;
    }
    DeviceMemory here{devices[i].id, {}};
    if (!cuda) here.available_bytes = available_host_bytes();
    if (sensor) here.available_bytes = sensor->free_bytes(uuid);
    if (here.available_bytes) here.available_bytes = minus(*here.available_bytes, headroom);
    if (most[i]) here.available_bytes = std::min(here.available_bytes.value_or(*most[i]), *most[i]);
    // A card of a pool may be hidden from this process; its UUID says that it was there.
    if (!here.available_bytes && devices[i].uuid.empty()) require_card(devices[i]);
    seen.emplace(uuid, here);
    memory.push_back(std::move(here));
  }
  return memory;
}

}  // namespace convoy
