// Keys and values as int8 with fp16 scales (KvPlanes in kernels/ops/op_set.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd/vector.h"
#include "kernels/ops/kv_dtype.h"

namespace convoy::cpu {
namespace {

constexpr float kLargestHalf = 65504.0F;
constexpr float kLargestInt8 = 127.0F;

// 0..65504 to fp16, to nearest even.
inline uint16_t to_half(float x) {
  uint32_t bits32 = 0;
  if (x < 0x1p-14F) {
    // Beside 0.5 a unit in the last place is fp16's smallest step.
    const float shifted = x + 0.5F;
    std::memcpy(&bits32, &shifted, sizeof(bits32));
    return static_cast<uint16_t>(bits32 - 0x3F000000U);
  }
  std::memcpy(&bits32, &x, sizeof(bits32));
  bits32 += 0xFFFU + ((bits32 >> 13) & 1U);
  return static_cast<uint16_t>((bits32 >> 13) - (112U << 10));
}

// Finite fp16, not negative.
inline float from_half(uint16_t x) {
  const uint32_t bits32 = static_cast<uint32_t>(x) << 13;
  float shifted = 0.0F;
  std::memcpy(&shifted, &bits32, sizeof(shifted));
  return shifted * 0x1p112F;
}

// x / scale as whole numbers, which lie in the low bytes of the lanes.
CONVOY_SIMD IntVec quantise(Vec x, float scale) {
  const Vec limit = set1(kLargestInt8);
  const Vec quotient = max(min(div(x, set1(scale)), limit), set1(-kLargestInt8));
  return bits(add(quotient, set1(0x1.8p23F)));  // there a unit in the last place is 1
}

// One token's values of one head, `size` of them (a multiple of 16).
void quantise_int8(const float* x, int size, int8_t* q, uint16_t* scales) {
  alignas(64) float group[kKvScaleGroup];
  alignas(64) int32_t whole[kLanes];
  for (int first = 0; first < size; first += kKvScaleGroup) {
    const int count = std::min(kKvScaleGroup, size - first);
    Vec largest = zero();
    for (int i = 0; i < count; i += kLanes) {
      const Vec value = load(x + first + i);
      const Vec magnitude = max(sub(zero(), value), value);
      store(group + i, select_greater(magnitude, set1(-1.0F), value, zero()));  // NaN becomes 0
      largest = max(magnitude, largest);
    }
    const uint16_t half = to_half(std::min(max_lanes(largest) / kLargestInt8, kLargestHalf));
    scales[first / kKvScaleGroup] = half;
    for (int i = 0; i < count; i += kLanes) {
      store_int(whole, half == 0 ? set1_int(0) : quantise(load(group + i), from_half(half)));
      for (int lane = 0; lane < kLanes; ++lane)
        q[first + i + lane] = static_cast<int8_t>(static_cast<uint8_t>(whole[lane] & 0xFF));
    }
  }
}

// The first `tokens` of a block as f32 [64, head_dim], zeros after them.
void dequantise_int8(const std::byte* block, int tokens, int head_dim, float* tile) {
  const auto dim = static_cast<size_t>(head_dim);
  const auto groups = static_cast<size_t>(kv_scale_groups(head_dim));
  const auto* q = reinterpret_cast<const int8_t*>(block);
  const auto* scales = reinterpret_cast<const uint16_t*>(block + kPageTokens * dim);
  for (int token = 0; token < tokens; ++token, q += dim, scales += groups, tile += dim) {
    for (size_t d = 0; d < dim; d += kLanes) {
      const Vec scale = set1(from_half(scales[d / kKvScaleGroup]));
      store(tile + d, mul(load_int8(q + d), scale));
    }
  }
  std::fill_n(tile, static_cast<size_t>(kPageTokens - tokens) * dim, 0.0F);
}

}  // namespace
}  // namespace convoy::cpu
