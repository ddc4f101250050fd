#include <algorithm>
#include <cstdint>

#include "kernels/cuda/host_copy.h"
#include "kernels/cuda/launch.cuh"

namespace convoy::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostBlocks = 32;

template <typename Unit>
__global__ void copy_units(Unit* destination, const Unit* source, size_t count) {
  grid_dependency_wait();
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    destination[i] = source[i];
}

template <typename Unit>
void enqueue(cudaStream_t stream, void* destination, const void* source, size_t bytes) {
  const size_t count = bytes / sizeof(Unit);
  const size_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  launch(copy_units<Unit>, shape, stream, static_cast<Unit*>(destination),
         static_cast<const Unit*>(source), count);
}

}  // namespace

void copy_with_kernel(cudaStream_t stream, void* destination, const void* source, size_t bytes) {
  const size_t alignment =
      reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source) | bytes;
  if (alignment % sizeof(uint4) == 0) {
    enqueue<uint4>(stream, destination, source, bytes);
  } else if (alignment % sizeof(uint32_t) == 0) {
    enqueue<uint32_t>(stream, destination, source, bytes);
  } else {
    enqueue<uint8_t>(stream, destination, source, bytes);
  }
}

}  // namespace convoy::cuda
