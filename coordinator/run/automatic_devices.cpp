#include "coordinator/run/automatic_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/console/output.h"
#include "coordinator/run/device_memory.h"
#include "shared/model/model_config.h"
#include "shared/plan/device_choice.h"
#include "shared/stage/list_devices.h"

namespace convoy {
namespace {

template <typename Value>
void keep_values_of(const std::vector<DeviceSpec>& devices,
                    std::vector<DeviceValue<Value>>& values) {
  std::erase_if(values, [&](const DeviceValue<Value>& value) {
    return std::none_of(devices.begin(), devices.end(), [&](const DeviceSpec& device) {
      return uuid_of(device) == uuid_of(value.device);
    });
  });
}

}  // namespace

std::vector<DeviceSpec> automatic_devices(RunOptions& options) {
  const DeviceSpec cpu{DeviceKind::cpu, "cpu"};
  if (!options.attach.empty()) return {cpu};
  const std::vector<DeviceSpec> gpus = all_gpus();
  if (gpus.empty()) {
    // Where a driver is, somebody expects its devices to be used.
    if (const std::string why = why_no_gpus(); !why.empty())
      write_stderr(fmt::format("devices: cpu: {}\n", why));
    return {cpu};
  }

  const ModelConfig config = read_model_config(options.model_directory);
  const auto memory = device_memory(gpus, options.memory_limits, options.kv_headroom_bytes);
  const auto listed = list_devices(gpus);
  std::vector<DeviceOffer> offers;
  for (size_t i = 0; i < listed.size(); ++i)
    offers.push_back({gpus[i], listed[i].name, listed[i].architecture, memory[i].available_bytes});
  const auto holds = [&](const std::vector<DeviceSpec>& devices) {
    if (!options.stage_layers.empty() && options.stage_layers.size() != devices.size())
      return false;
    std::vector<DeviceMemory> theirs;
    for (const DeviceSpec& device : devices) {
      theirs.push_back(*std::find_if(memory.begin(), memory.end(),
                                     [&](const DeviceMemory& m) { return m.device == device.id; }));
    }
    return make_stage_plan(config, plan_request(config, options, devices, theirs)).fits();
  };
  const DeviceChoice choice = choose_devices(offers, options.allow_mixed_architectures,
                                             static_cast<size_t>(config.num_layers), holds);
  write_stderr("devices: " + choice.reason + "\n");
  keep_values_of(choice.devices, options.memory_limits);
  keep_values_of(choice.devices, options.device_speeds);
  return choice.devices;
}

}  // namespace convoy
