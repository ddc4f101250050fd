// Copies from, to and between registered host memory by a kernel, in stream order. Plain types
// only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace convoy::cuda {

/// Both ranges must be memory that the device reaches: its own, a peer's that is mapped, or
/// registered host memory. Meant for small copies: one multiprocessor's worth of threads moves a
/// few kilobytes.
void copy_with_kernel(cudaStream_t stream, void* destination, const void* source, size_t bytes);

/// The same by one block, which then writes `value` to `word` (registered host memory): whoever
/// sees it sees the copy, and the source may be overwritten. A write that the stream makes by
/// itself takes the card microseconds more.
void copy_then_write(cudaStream_t stream, void* destination, const void* source, size_t bytes,
                     uint32_t* word, uint32_t value);
/// For more, one block is slower than several.
inline constexpr size_t kMostRungBytes = size_t{64} << 10;

}  // namespace convoy::cuda
