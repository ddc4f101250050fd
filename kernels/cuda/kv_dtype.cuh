// Quantised keys and values on the device: how they are written and how they become bf16 (KvPlanes
// in kernels/ops/op_set.h says what the bytes mean).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/ops/op_set.h"

namespace convoy::cuda {

/// Calls run(std::integral_constant<KvDtype, …>) with the planes' dtype.
template <typename Run>
void with_kv_dtype(KvDtype dtype, Run&& run) {
  switch (dtype) {
    case KvDtype::bf16:
      return run(std::integral_constant<KvDtype, KvDtype::bf16>());
    case KvDtype::int8:
      return run(std::integral_constant<KvDtype, KvDtype::int8>());
    case KvDtype::fp8:
      return run(std::integral_constant<KvDtype, KvDtype::fp8>());
    case KvDtype::f32:
      break;
  }
  CONVOY_CHECK(false, kv_dtype_name(dtype));
}

/// Where one page of one KV head begins in a plane.
template <KvDtype kDtype>
__device__ __forceinline__ std::byte* kv_block(const KvPlanes& cache, void* plane, int page,
                                               int kv_head) {
  return static_cast<std::byte*>(plane) +
         (static_cast<ptrdiff_t>(page) * cache.kv_heads + kv_head) *
             static_cast<ptrdiff_t>(kv_block_bytes(kDtype, cache.head_dim));
}

/// What turns stored values into numbers. int8: of one token and group. fp8: nothing.
template <KvDtype kDtype>
struct KvScale {
  __device__ __forceinline__ explicit KvScale(const __half* /*stored*/) {}
};
template <>
struct KvScale<KvDtype::int8> {
  float scale;
  float offset;  // -(2^15 + 128) * scale, exactly: nine bits times eleven

  __device__ __forceinline__ explicit KvScale(const __half* stored)
      : scale(__half2float(*stored)), offset(-32896.0F * scale) {}
};

/// Four stored values, which are bytes 0..3 of `word`, exactly as they are read.
__device__ __forceinline__ void widen_kv(uint32_t word, const KvScale<KvDtype::int8>& scale,
                                         float (&values)[4]) {
  // With byte q + 128 in its second byte, 0x47000000 is the float 2^15 + 128 + q.
  const uint32_t biased = word ^ 0x80808080U;
  values[0] = fmaf(__uint_as_float(__byte_perm(biased, 0x47U, 0x4505)), scale.scale, scale.offset);
  values[1] = fmaf(__uint_as_float(__byte_perm(biased, 0x47U, 0x4515)), scale.scale, scale.offset);
  values[2] = fmaf(__uint_as_float(__byte_perm(biased, 0x47U, 0x4525)), scale.scale, scale.offset);
  values[3] = fmaf(__uint_as_float(__byte_perm(biased, 0x47U, 0x4535)), scale.scale, scale.offset);
}

/// Two e4m3 values, the bytes of `pair`, as fp16, which holds them exactly.
__device__ __forceinline__ __half2 widen_e4m3(uint16_t pair) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(pair));
  __half2 values;
  memcpy(&values, &bits, sizeof(bits));
  return values;
#else
  // Exponent and fraction stand where fp16 has them, 2^8 too small for the other bias; NaN's would
  // give 480.
  const uint32_t spread = __byte_perm(pair, 0, 0x1404);
  bits = (spread & 0x80008000U) | ((spread & 0x7F007F00U) >> 1);
  __half2 values;
  memcpy(&values, &bits, sizeof(bits));
  values = __hmul2(values, __float2half2_rn(256.0F));
  memcpy(&bits, &values, sizeof(bits));
  if ((spread & 0x7F000000U) == 0x7F000000U) bits |= 0x7FFF0000U;
  if ((spread & 0x00007F00U) == 0x00007F00U) bits |= 0x00007FFFU;
  memcpy(&values, &bits, sizeof(bits));
  return values;
#endif
}
__device__ __forceinline__ void widen_kv(uint32_t word, const KvScale<KvDtype::fp8>& /*none*/,
                                         float (&values)[4]) {
  const float2 low = __half22float2(widen_e4m3(static_cast<uint16_t>(word)));
  const float2 high = __half22float2(widen_e4m3(static_cast<uint16_t>(word >> 16)));
  values[0] = low.x;
  values[1] = low.y;
  values[2] = high.x;
  values[3] = high.y;
}

/// Eight stored values of one group as bf16.
template <KvDtype kDtype>
__device__ __forceinline__ uint4 widen_kv_to_bf16(uint32_t first, uint32_t second,
                                                  const KvScale<kDtype>& scale) {
  float low[4];
  float high[4];
  widen_kv(first, scale, low);
  widen_kv(second, scale, high);
  return make_uint4(pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                    pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3]));
}

/// The stored scale of a token and group in a block's copy, wherever it lies.
__device__ __forceinline__ const __half* stored_scale(const std::byte* block, int head_dim,
                                                      int token, int group) {
  return reinterpret_cast<const __half*>(block + kPageTokens * head_dim) +
         token * kv_scale_groups(head_dim) + group;
}

/// Starts copying a block to shared memory, with all `threads` of the block. Tokens from `tokens`
/// on become zeros, their scales too: what lies there may be NaN, and weight 0 would not hide it.
template <KvDtype kDtype>
__device__ __forceinline__ void copy_block_async(const std::byte* block, int head_dim, int tokens,
                                                 int threads, std::byte* shared) {
  const int value_bytes = kPageTokens * head_dim;
  const int bytes = static_cast<int>(kv_block_bytes(kDtype, head_dim));
  const int live_values = tokens * head_dim;
  const int live_scales = value_bytes + tokens * 2 * kv_scale_groups(head_dim);
  for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += threads * 16) {
    const int left = (at < value_bytes ? live_values : live_scales) - at;
    copy_async_first(shared + at, block + at, max(0, min(left, 16)));
  }
}

/// Stores one token's key or value of one head, for a whole warp: thread l has values 8l.., zeros
/// from head_dim on.
template <KvDtype kDtype>
__device__ __forceinline__ void store_quantised(std::byte* block, int slot, int head_dim,
                                                const float (&values)[8]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool mine = 8 * lane < head_dim;
  std::byte* const to = block + slot * head_dim + 8 * lane;
  uint32_t words[2] = {};
  if constexpr (kDtype == KvDtype::fp8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = __nv_cvt_float2_to_fp8x2(make_float2(values[2 * i], values[2 * i + 1]),
                                                     __NV_SATFINITE, __NV_E4M3);
      words[i / 2] |= pair << (16 * (i % 2));
    }
  } else {
    float largest = 0.0F;
#pragma unroll
    for (const float value : values) largest = fmaxf(largest, fabsf(value));  // past NaN
#pragma unroll
    for (int distance = 1; distance < kKvScaleGroup / 8; distance *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, distance));
    const __half stored = __float2half_rn(fminf(largest / 127.0F, 65504.0F));
    const float scale = __half2float(stored);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // Comparisons with NaN are false.
      const float whole = rintf(values[i] / scale);
      const float q = whole > -127.0F ? fminf(whole, 127.0F) : -127.0F;
      const int byte = scale > 0.0F && values[i] == values[i] ? static_cast<int>(q) : 0;
      words[i / 4] |= static_cast<uint32_t>(byte & 0xFF) << (8 * (i % 4));
    }
    const int groups = kv_scale_groups(head_dim);
    auto* const scales = reinterpret_cast<__half*>(block + kPageTokens * head_dim);
    if (mine && lane % 8 == 0) scales[slot * groups + lane / 8] = stored;
  }
  if (mine) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
}

}  // namespace convoy::cuda
