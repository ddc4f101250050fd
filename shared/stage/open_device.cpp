#include "shared/stage/open_device.h"

#include <fmt/format.h>

#include "base/exit_code.h"
#if CONVOY_WITH_CUDA
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_devices.h"
#endif

namespace convoy {

std::unique_ptr<Device> open_device(const std::string& id, int threads) {
  if (id == "cpu") return make_cpu_device({.threads = threads, .instruction_set = ""});
#if CONVOY_WITH_CUDA
  return make_cuda_device({.id = id});
#else
  throw StartError(fmt::format(
      "device '{}': this build has no CUDA (configured with CONVOY_CUDA=OFF or without nvcc 12.8)",
      id));
#endif
}

std::vector<std::string> cuda_device_ids() {
  std::vector<std::string> ids;
#if CONVOY_WITH_CUDA
  for (const auto& device : list_cuda_devices().devices)
    ids.push_back(fmt::format("cuda:{}", device.ordinal));
#endif
  return ids;
}

bool driver_allows_peer_access([[maybe_unused]] const DeviceInfo& from,
                               [[maybe_unused]] const DeviceInfo& to) {
#if CONVOY_WITH_CUDA
  return cuda_peer_access(from.uuid, to.uuid);
#else
  return false;
#endif
}

}  // namespace convoy
