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

constexpr int kMostRingThreads = 1024;
constexpr int kUnitsInFlight = 4;  // of a thread: what crosses a bus takes long to come

template <typename Unit>
__global__ void __launch_bounds__(kMostRingThreads)
    copy_units_then_write(Unit* destination, const Unit* source, size_t count, uint32_t* word,
                          uint32_t value) {
  allow_dependents();
  grid_dependency_wait();
  const size_t step = blockDim.x;
  for (size_t first = threadIdx.x; first < count; first += kUnitsInFlight * step) {
    Unit units[kUnitsInFlight];
#pragma unroll
    for (int i = 0; i < kUnitsInFlight; ++i) {
      if (first + i * step < count) units[i] = source[first + i * step];
    }
#pragma unroll
    for (int i = 0; i < kUnitsInFlight; ++i) {
      if (first + i * step < count) destination[first + i * step] = units[i];
    }
  }
  __syncthreads();
  // The release covers what the barrier brought before it, all threads' copies.
  if (threadIdx.x == 0)
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Calls `use` with a null pointer of the widest unit that both ranges are made of.
template <typename Use>
void with_unit(const void* destination, const void* source, size_t bytes, Use&& use) {
  const size_t alignment =
      reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source) | bytes;
  if (alignment % sizeof(uint4) == 0) {
    use(static_cast<uint4*>(nullptr));
  } else if (alignment % sizeof(uint32_t) == 0) {
    use(static_cast<uint32_t*>(nullptr));
  } else {
    use(static_cast<uint8_t*>(nullptr));
  }
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
  with_unit(destination, source, bytes,
            [&]<typename Unit>(Unit*) { enqueue<Unit>(stream, destination, source, bytes); });
}

void copy_then_write(cudaStream_t stream, void* destination, const void* source, size_t bytes,
                     uint32_t* word, uint32_t value) {
  with_unit(destination, source, bytes, [&]<typename Unit>(Unit*) {
    const size_t count = bytes / sizeof(Unit);
    const size_t threads = (count + kUnitsInFlight - 1) / kUnitsInFlight;
    const unsigned warps =
        static_cast<unsigned>(std::min(threads, size_t{kMostRingThreads}) + 31) / 32;
    launch(copy_units_then_write<Unit>, {.grid = dim3(1), .block = dim3(32 * warps)}, stream,
           static_cast<Unit*>(destination), static_cast<const Unit*>(source), count, word, value);
  });
}

}  // namespace convoy::cuda
