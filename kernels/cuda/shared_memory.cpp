#include "kernels/cuda/shared_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"

namespace convoy::cuda {

size_t shared_bytes_per_block() {
  static const size_t bytes = [] {
    int device = 0, most = 0;
    CONVOY_CUDA(cudaGetDevice(&device));
    CONVOY_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const char* const text = std::getenv("CONVOY_TEST_SHARED_KIB");
    if (text == nullptr) return static_cast<size_t>(most);
    const long kib = std::strtol(text, nullptr, 10);
    CONVOY_CHECK(kib > 0, "CONVOY_TEST_SHARED_KIB");
    return std::min(static_cast<size_t>(most), static_cast<size_t>(kib) << 10);
  }();
  return bytes;
}

}  // namespace convoy::cuda
