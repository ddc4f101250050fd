#include "shared/stage/open_device.h"

#include <fmt/format.h>

#include "base/exit_code.h"
#if CONVOY_WITH_CUDA
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_devices.h"
#endif

namespace convoy {

std::unique_ptr<Device> open_device(const std::string& id, int threads,
                                    [[maybe_unused]] const std::string& uuid) {
  if (id == "cpu") return make_cpu_device({.threads = threads, .instruction_set = ""});
#if CONVOY_WITH_CUDA
  return make_cuda_device({.id = id, .uuid = uuid});
#else
  throw StartError(fmt::format(
      "device '{}': this build has no CUDA (configured with CONVOY_CUDA=OFF or without nvcc 12.8)",
      id));
#endif
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
