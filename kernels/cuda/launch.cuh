// Launches with programmatic dependent launch (CUDA programming guide, "Programmatic dependent
// launch and synchronization").
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/shared_memory.h"

namespace convoy::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  unsigned cluster_blocks = 1;  ///< blocks of a cluster along x; more than 1: sm_90 and later
};

/// Lets a kernel have so much dynamic shared memory, which it must be asked for beyond 48 KiB. Once
/// per kernel, whose `bytes` are always the same.
template <auto kKernel>
void allow_shared_bytes(size_t bytes) {
  static const bool kAllowed = [bytes] {
    CONVOY_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
    return true;
  }();
  (void)kAllowed;
}

/// The compute capability, times ten, that a kernel's code was compiled for. It may be older than
/// the device.
template <typename... Parameters>
int code_version(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  CONVOY_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion;
}

/// The kernel may begin before its predecessor in the stream has ended: it must call
/// grid_dependency_wait() in every thread before it touches what an earlier kernel may write or
/// read. Works in captures too.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  CONVOY_CHECK_OP(shape.shared_bytes, <=, shared_bytes_per_block());
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster_blocks;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = shape.cluster_blocks > 1 ? 2 : 1;
  CONVOY_CUDA(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

/// Lets the next kernel of the stream begin (once every block has called it or ended).
__device__ __forceinline__ void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Returns when all kernels before this one are done and what they wrote is visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace convoy::cuda
