// vector_scalar.h with AVX2 and FMA instructions, two registers a vector; the contract of each
// function stands there.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd/inline.h"

namespace convoy::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 2;
constexpr int kTileVectors = 2;
constexpr int kTileSums = 4;

struct Vec {
  __m256 lo, hi;
};
struct IntVec {
  __m256i lo, hi;
};

CONVOY_SIMD __m256i first_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

CONVOY_SIMD Vec zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
CONVOY_SIMD Vec set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
CONVOY_SIMD Vec load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
CONVOY_SIMD void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
CONVOY_SIMD Vec load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_mask(n)), _mm256_maskload_ps(p + 8, first_mask(n - 8))};
}
CONVOY_SIMD void store_first(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, first_mask(n), a.lo);
  _mm256_maskstore_ps(p + 8, first_mask(n - 8), a.hi);
}
CONVOY_SIMD Vec keep_first(Vec a, int n) {
  return {_mm256_and_ps(a.lo, _mm256_castsi256_ps(first_mask(n))),
          _mm256_and_ps(a.hi, _mm256_castsi256_ps(first_mask(n - 8)))};
}

CONVOY_SIMD Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
CONVOY_SIMD Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
CONVOY_SIMD Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
CONVOY_SIMD Vec div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
CONVOY_SIMD Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
CONVOY_SIMD Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
CONVOY_SIMD Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

CONVOY_SIMD IntVec bits(Vec a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
CONVOY_SIMD Vec from_bits(IntVec a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
CONVOY_SIMD IntVec set1_int(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
CONVOY_SIMD IntVec add_int(IntVec a, IntVec b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
CONVOY_SIMD IntVec sub_int(IntVec a, IntVec b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
CONVOY_SIMD IntVec half_int(IntVec a) {
  return {_mm256_srai_epi32(a.lo, 1), _mm256_srai_epi32(a.hi, 1)};
}
CONVOY_SIMD IntVec to_exponent_field(IntVec a) {
  return {_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)};
}
CONVOY_SIMD Vec select_greater(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
CONVOY_SIMD IntVec select_greater_int(Vec a, Vec b, IntVec x, IntVec y) {
  return bits(select_greater(a, b, from_bits(x), from_bits(y)));
}
CONVOY_SIMD void store_int(int32_t* p, IntVec a) {
  std::memcpy(p, &a.lo, sizeof(a.lo));
  std::memcpy(p + 8, &a.hi, sizeof(a.hi));
}

CONVOY_SIMD float sum_lanes(Vec a) {
  const __m256 sum8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_shuffle_ps(sum2, sum2, 1)));
}
CONVOY_SIMD float max_lanes(Vec a) {
  const __m256 max8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 max4 = _mm_max_ps(_mm256_castps256_ps128(max8), _mm256_extractf128_ps(max8, 1));
  const __m128 max2 = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
  return _mm_cvtss_f32(_mm_max_ss(max2, _mm_shuffle_ps(max2, max2, 1)));
}
constexpr int sum_slot(int o) {
  return o;
}
CONVOY_SIMD void store_sums(const Vec (&acc)[kTileSums], float* out) {
#pragma GCC unroll 4
  for (int o = 0; o < kTileSums; ++o) out[o] = sum_lanes(acc[o]);
}

CONVOY_SIMD __m256 even_of(__m256i raw) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
}
CONVOY_SIMD __m256 odd_of(__m256i raw) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000U))));
}
CONVOY_SIMD void load_bf16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  even = {even_of(low), even_of(high)};
  odd = {odd_of(low), odd_of(high)};
}
CONVOY_SIMD Vec load_int8(const int8_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(raw, raw)))};
}
CONVOY_SIMD Vec interleave_half(__m256 even, __m256 odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
CONVOY_SIMD void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  first = interleave_half(even.lo, odd.lo);
  second = interleave_half(even.hi, odd.hi);
}

}  // namespace
}  // namespace convoy::cpu
