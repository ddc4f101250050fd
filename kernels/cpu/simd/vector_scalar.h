// The vector every kernel is written with: 16 floats, here in portable C++. vector_avx2.h and
// vector_avx512.h have the same names with the same results bit for bit: every operation is one
// correctly rounded IEEE operation per lane.
//
// Each instruction set compiles the kernels in a file of its own, so everything here has internal
// linkage: a linker that merged the copies could give a processor code it cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd/inline.h"

namespace convoy::cpu {
namespace {

constexpr int kLanes = 16;
/// Rows and vectors of one register tile, and dot products that are summed at once.
constexpr int kTileRows = 2;
constexpr int kTileVectors = 2;
constexpr int kTileSums = 4;

struct Vec {
  float v[kLanes];
};
struct IntVec {
  int32_t v[kLanes];
};

template <typename F>
CONVOY_SIMD Vec each_lane(F f) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
  return r;
}
template <typename F>
CONVOY_SIMD IntVec each_int_lane(F f) {
  IntVec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
  return r;
}

CONVOY_SIMD Vec zero() {
  return each_lane([](int) { return 0.0F; });
}
CONVOY_SIMD Vec set1(float x) {
  return each_lane([&](int) { return x; });
}
CONVOY_SIMD Vec load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
CONVOY_SIMD void store(float* p, Vec a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
/// The first n (0..16) values; the other lanes are zero and their memory is not touched.
CONVOY_SIMD Vec load_first(const float* p, int n) {
  return each_lane([&](int i) { return i < n ? p[i] : 0.0F; });
}
CONVOY_SIMD void store_first(float* p, Vec a, int n) {
  for (int i = 0; i < n && i < kLanes; ++i) p[i] = a.v[i];
}
/// Lanes n and beyond become zero; any n.
CONVOY_SIMD Vec keep_first(Vec a, int n) {
  return each_lane([&](int i) { return i < n ? a.v[i] : 0.0F; });
}

CONVOY_SIMD Vec add(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] + b.v[i]; });
}
CONVOY_SIMD Vec sub(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] - b.v[i]; });
}
CONVOY_SIMD Vec mul(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] * b.v[i]; });
}
CONVOY_SIMD Vec div(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] / b.v[i]; });
}
/// a * b + c, rounded once.
CONVOY_SIMD Vec fma(Vec a, Vec b, Vec c) {
  return each_lane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
/// b where either is NaN (the rule of the x86 instructions).
CONVOY_SIMD Vec max(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
CONVOY_SIMD Vec min(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

CONVOY_SIMD IntVec bits(Vec a) {
  IntVec r;
  std::memcpy(&r, &a, sizeof(r));
  return r;
}
CONVOY_SIMD Vec from_bits(IntVec a) {
  Vec r;
  std::memcpy(&r, &a, sizeof(r));
  return r;
}
CONVOY_SIMD IntVec set1_int(int32_t x) {
  return each_int_lane([&](int) { return x; });
}
CONVOY_SIMD IntVec add_int(IntVec a, IntVec b) {
  return each_int_lane([&](int i) {
    return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  });
}
CONVOY_SIMD IntVec sub_int(IntVec a, IntVec b) {
  return each_int_lane([&](int i) {
    return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]));
  });
}
CONVOY_SIMD IntVec half_int(IntVec a) {  // rounds down
  return each_int_lane([&](int i) { return a.v[i] >> 1; });
}
CONVOY_SIMD IntVec to_exponent_field(IntVec a) {
  return each_int_lane(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << 23); });
}
/// a > b ? x : y, lane by lane; false where a or b is NaN.
CONVOY_SIMD Vec select_greater(Vec a, Vec b, Vec x, Vec y) {
  return each_lane([&](int i) { return a.v[i] > b.v[i] ? x.v[i] : y.v[i]; });
}
CONVOY_SIMD IntVec select_greater_int(Vec a, Vec b, IntVec x, IntVec y) {
  return each_int_lane([&](int i) { return a.v[i] > b.v[i] ? x.v[i] : y.v[i]; });
}
CONVOY_SIMD void store_int(int32_t* p, IntVec a) {
  std::memcpy(p, a.v, sizeof(a));
}

/// The sum of the lanes, in this order: i with i+8, then i+4, i+2, i+1.
CONVOY_SIMD float sum_lanes(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
}
CONVOY_SIMD float max_lanes(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}
/// out[o] = sum_lanes(acc[sum_slot(o)]) for o in 0..kTileSums-1.
constexpr int sum_slot(int o) {
  return o;
}
CONVOY_SIMD void store_sums(const Vec (&acc)[kTileSums], float* out) {
  for (int o = 0; o < kTileSums; ++o) out[o] = sum_lanes(acc[o]);
}

CONVOY_SIMD float widen(uint16_t x) {
  const uint32_t bits32 = static_cast<uint32_t>(x) << 16;
  float r;
  std::memcpy(&r, &bits32, sizeof(r));
  return r;
}
/// 32 bf16 values, widened exactly: those with even and those with odd index.
CONVOY_SIMD void load_bf16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  even = each_lane([&](int i) { return widen(p[2 * i]); });
  odd = each_lane([&](int i) { return widen(p[2 * i + 1]); });
}
CONVOY_SIMD Vec load_int8(const int8_t* p) {
  return each_lane([&](int i) { return static_cast<float>(p[i]); });
}
/// Back to the order of memory: first = lanes 0..15 of the 32.
CONVOY_SIMD void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  first = each_lane([&](int i) { return i % 2 == 0 ? even.v[i / 2] : odd.v[i / 2]; });
  second = each_lane([&](int i) { return i % 2 == 0 ? even.v[8 + i / 2] : odd.v[8 + i / 2]; });
}

}  // namespace
}  // namespace convoy::cpu
