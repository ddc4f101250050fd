#include "shared/stage/open_device.h"

#include <fmt/format.h>

#include "base/exit_code.h"
#if CONVOY_WITH_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif

namespace convoy {
namespace {

// CUDA stages do not exist yet; the answer still tells a missing driver from a card that cannot be
// used.
[[noreturn]] void refuse_cuda(const std::string& id) {
#if CONVOY_WITH_CUDA
  const CudaDeviceList list = list_cuda_devices();
  if (!list.error.empty())
    throw StartError(fmt::format("device '{}': no CUDA device can be used: {}", id, list.error));
  for (const auto& device : list.devices) {
    if (id != fmt::format("cuda:{}", device.ordinal) && id != device.uuid && id != device.pci_id)
      continue;
    throw StartError(fmt::format(
        "device '{}' ({}, {}): this version runs stages on CPU devices only; use --devices cpu,…",
        id, device.name, device.architecture));
  }
  throw StartError(
      fmt::format("device '{}' is not one of the {} CUDA devices here", id, list.devices.size()));
#else
  throw StartError(fmt::format(
      "device '{}': this build has no CUDA (configured with CONVOY_CUDA=OFF or without nvcc 12.8)",
      id));
#endif
}

}  // namespace

std::unique_ptr<Device> open_device(const std::string& id, int threads) {
  if (id == "cpu") return make_cpu_device({.threads = threads, .instruction_set = ""});
  refuse_cuda(id);
}

}  // namespace convoy
