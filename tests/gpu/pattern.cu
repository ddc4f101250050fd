#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "tests/gpu/pattern.h"

namespace convoy::test {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostBlocks = 128;

__device__ uint32_t pattern_word(uint32_t seed, size_t i) {
  const uint32_t x = (seed ^ static_cast<uint32_t>(i)) * 2654435761U + seed;
  return x ^ (x >> 15);
}

__global__ void fill_kernel(uint32_t* words, size_t count, uint32_t seed) {
  cuda::grid_dependency_wait();
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    words[i] = pattern_word(seed, i);
}

__global__ void check_kernel(const uint32_t* words, size_t count, uint32_t seed,
                             unsigned long long* wrong) {
  cuda::grid_dependency_wait();
  unsigned long long mine = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    mine += words[i] != pattern_word(seed, i);
  if (mine != 0) atomicAdd(wrong, mine);
}

cuda::LaunchShape shape_of(size_t count) {
  const size_t blocks = std::clamp((count + kThreads - 1) / kThreads, size_t{1}, kMostBlocks);
  return {dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0};
}

}  // namespace

void fill_pattern(cudaStream_t stream, uint32_t* words, size_t count, uint32_t seed) {
  cuda::launch(fill_kernel, shape_of(count), stream, words, count, seed);
}

void check_pattern(cudaStream_t stream, const uint32_t* words, size_t count, uint32_t seed,
                   unsigned long long* wrong) {
  cuda::launch(check_kernel, shape_of(count), stream, words, count, seed, wrong);
}

}  // namespace convoy::test
