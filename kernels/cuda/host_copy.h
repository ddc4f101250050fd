// Copies from, to and between registered host memory by a kernel, in stream order. Plain types
// only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace convoy::cuda {

/// Both ranges must be memory that the device reaches: its own, a peer's that is mapped, or
/// registered host memory. Meant for small copies: one multiprocessor's worth of threads moves a
/// few kilobytes.
void copy_with_kernel(cudaStream_t stream, void* destination, const void* source, size_t bytes);

}  // namespace convoy::cuda
