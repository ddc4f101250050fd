// Which device the calling thread's CUDA calls go to.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_check.h"

namespace convoy::cuda {

/// Binds the calling thread to a device and restores what it was bound to.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal) {
    CONVOY_CUDA(cudaGetDevice(&before_));
    if (before_ != ordinal) {
      CONVOY_CUDA(cudaSetDevice(ordinal));
      changed_ = true;
    }
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// For destructors: an error ends the process, unless the process is ending anyway and the runtime
/// is already gone, with everything that was to be released.
#define CONVOY_CUDA_RELEASE(call)                                                          \
  do {                                                                                     \
    const cudaError_t convoy_cuda_error = (call);                                          \
    if (convoy_cuda_error != cudaSuccess && convoy_cuda_error != cudaErrorCudartUnloading) \
      ::convoy::cuda::call_failed(__FILE__, __LINE__, #call, convoy_cuda_error);           \
  } while (false)

/// Frees on `ordinal` without needing a live device object; `free` is cudaFree or cudaFreeHost.
inline void release_on(int ordinal, cudaError_t (*free)(void*), void* address) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) == cudaErrorCudartUnloading) return;
  if (before != ordinal) CONVOY_CUDA_RELEASE(cudaSetDevice(ordinal));
  CONVOY_CUDA_RELEASE(free(address));
  if (before != ordinal) CONVOY_CUDA_RELEASE(cudaSetDevice(before));
}

}  // namespace convoy::cuda
