// vector_scalar.h with AVX-512 instructions; the contract of each function stands there.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd/inline.h"

namespace convoy::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 4;
constexpr int kTileSums = 16;

struct Vec {
  __m512 v;
};
struct IntVec {
  __m512i v;
};

CONVOY_SIMD __mmask16 first_mask(int n) {
  const int clamped = n < 0 ? 0 : (n > kLanes ? kLanes : n);
  return static_cast<__mmask16>((1U << clamped) - 1U);
}

CONVOY_SIMD Vec zero() {
  return {_mm512_setzero_ps()};
}
CONVOY_SIMD Vec set1(float x) {
  return {_mm512_set1_ps(x)};
}
CONVOY_SIMD Vec load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
CONVOY_SIMD void store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
CONVOY_SIMD Vec load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_mask(n), p)};
}
CONVOY_SIMD void store_first(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, first_mask(n), a.v);
}
CONVOY_SIMD Vec keep_first(Vec a, int n) {
  return {_mm512_maskz_mov_ps(first_mask(n), a.v)};
}

CONVOY_SIMD Vec add(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
CONVOY_SIMD Vec sub(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
CONVOY_SIMD Vec mul(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
CONVOY_SIMD Vec div(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
CONVOY_SIMD Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
CONVOY_SIMD Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
CONVOY_SIMD Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}

CONVOY_SIMD IntVec bits(Vec a) {
  return {_mm512_castps_si512(a.v)};
}
CONVOY_SIMD Vec from_bits(IntVec a) {
  return {_mm512_castsi512_ps(a.v)};
}
CONVOY_SIMD IntVec set1_int(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
CONVOY_SIMD IntVec add_int(IntVec a, IntVec b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
CONVOY_SIMD IntVec sub_int(IntVec a, IntVec b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
CONVOY_SIMD IntVec half_int(IntVec a) {
  return {_mm512_srai_epi32(a.v, 1)};
}
CONVOY_SIMD IntVec to_exponent_field(IntVec a) {
  return {_mm512_slli_epi32(a.v, 23)};
}
CONVOY_SIMD Vec select_greater(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
CONVOY_SIMD IntVec select_greater_int(Vec a, Vec b, IntVec x, IntVec y) {
  return {_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
CONVOY_SIMD void store_int(int32_t* p, IntVec a) {
  _mm512_storeu_si512(p, a.v);
}

// Halves of two vectors: one pass of the pairwise sum for both at once.
CONVOY_SIMD __m512 fold8(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
CONVOY_SIMD __m512 fold4(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
CONVOY_SIMD __m512 fold2(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
}
CONVOY_SIMD __m512 fold1(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}
CONVOY_SIMD float sum_lanes(Vec a) {
  const __m512 sum8 = fold8(a.v, a.v);
  const __m512 sum4 = fold4(sum8, sum8);
  const __m512 sum2 = fold2(sum4, sum4);
  return _mm512_cvtss_f32(fold1(sum2, sum2));
}
CONVOY_SIMD float max_lanes(Vec a) {
  __m512 m = a.v;
  m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0xEE));
  m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0x55));
  m = _mm512_max_ps(m, _mm512_shuffle_ps(m, m, 0xEE));
  m = _mm512_max_ps(m, _mm512_shuffle_ps(m, m, 0x55));
  return _mm512_cvtss_f32(m);
}
// The folds leave the 16 sums transposed as a 4 x 4 matrix.
constexpr int sum_slot(int o) {
  return 4 * (o % 4) + o / 4;
}
CONVOY_SIMD void store_sums(const Vec (&acc)[kTileSums], float* out) {
  __m512 quads[4];
#pragma GCC unroll 4
  for (int m = 0; m < 4; ++m) {
    quads[m] =
        fold4(fold8(acc[4 * m].v, acc[4 * m + 1].v), fold8(acc[4 * m + 2].v, acc[4 * m + 3].v));
  }
  _mm512_storeu_ps(out, fold1(fold2(quads[0], quads[1]), fold2(quads[2], quads[3])));
}

CONVOY_SIMD void load_bf16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  const __m512i raw = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
  odd.v = _mm512_castsi512_ps(
      _mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000U))));
}
CONVOY_SIMD Vec load_int8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
CONVOY_SIMD void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  first.v = _mm512_permutex2var_ps(even.v, low, odd.v);
  second.v = _mm512_permutex2var_ps(even.v, high, odd.v);
}

}  // namespace
}  // namespace convoy::cpu
