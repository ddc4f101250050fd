// Eight bf16 values at a time, as f32 in registers: one 16-byte access where the address allows it,
// else one value after the other. The values and their order are the same both ways.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace convoy::cuda {

inline constexpr int kVectorValues = 8;

/// Whether rows that start at `base` and lie `stride` values apart can be read 16 bytes at a time.
inline bool vectorised(const void* base, ptrdiff_t stride) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride % kVectorValues == 0;
}

__device__ __forceinline__ void unpack_bf16(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xFFFF0000U);
}

/// row[8 * vector ..], zeros from `size` on.
template <bool kVectorised>
__device__ __forceinline__ void load_vector(const __nv_bfloat16* row, int vector, int size,
                                            float (&values)[kVectorValues]) {
  const int first = vector * kVectorValues;
  if (kVectorised && first + kVectorValues <= size) {
    const uint4 bits = *reinterpret_cast<const uint4*>(row + first);
    unpack_bf16(bits.x, values[0], values[1]);
    unpack_bf16(bits.y, values[2], values[3]);
    unpack_bf16(bits.z, values[4], values[5]);
    unpack_bf16(bits.w, values[6], values[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorValues; ++i)
    values[i] = first + i < size ? __bfloat162float(row[first + i]) : 0.0F;
}

/// row[8 * vector ..] = values, up to `size`.
template <bool kVectorised>
__device__ __forceinline__ void store_vector(__nv_bfloat16* row, int vector, int size,
                                             const float (&values)[kVectorValues]) {
  const int first = vector * kVectorValues;
  if (kVectorised && first + kVectorValues <= size) {
    *reinterpret_cast<uint4*>(row + first) =
        make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                   pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7]));
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorValues; ++i) {
    if (first + i < size) row[first + i] = __float2bfloat16_rn(values[i]);
  }
}

}  // namespace convoy::cuda
