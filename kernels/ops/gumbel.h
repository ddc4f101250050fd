// The arithmetic of a draw, the same bits on every processor and on CUDA devices: Philox4x32-10,
// Gumbel noise from it, and the weights that top-p and min-p compare. Plain C++ that also compiles
// in .cu files.
//
// The rule: the drawn token is the argmax over the kept ids of
//     scaled_logit(logit, largest logit, temperature) + gumbel_noise(seed, token_index, id)
// in the total order (value, lowest id). The noise of an id depends on these three numbers and
// nothing else, so a column that verifies a draft draws what a plain decode step at the same token
// index draws. argmax(logit/T + Gumbel) is a draw from softmax(logit/T) (the Gumbel-max trick;
// Maddison, Tarlow, Minka: A* Sampling, 2014).
//
// Every function is a fixed sequence of correctly rounded f32 operations (fused multiply-adds where
// fused_multiply_add is written, nowhere else) and integer operations. Host code needs
// -ffp-contract=off, device code uses the rounding intrinsics.
//
// Error bounds, tested against double: negative_log_uniform 2e-7 relative; gumbel_noise 2e-7 *
// max(1, |g|); natural_log 1e-7 * max(1, |log|); exp_weight 1e-7 relative.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__FAST_MATH__)
#error "a draw must have the same bits everywhere: no fast-math"
#endif

#if defined(__CUDACC__)
#define CONVOY_DRAW __host__ __device__ __forceinline__
#else
#define CONVOY_DRAW [[gnu::always_inline]] inline
#endif

namespace convoy::draw {

CONVOY_DRAW float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
CONVOY_DRAW float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
CONVOY_DRAW float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
CONVOY_DRAW float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
CONVOY_DRAW uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
CONVOY_DRAW float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

struct PhiloxWords {
  uint32_t word[4];
};

/// Philox4x32 with 10 rounds (Salmon et al.: Parallel random numbers: as easy as 1, 2, 3, 2011;
/// Random123).
CONVOY_DRAW PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(c0) * 0xD2511F53U;
    const uint64_t product1 = static_cast<uint64_t>(c2) * 0xCD9E8D57U;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// The 32 random bits of an id: word 0 of Philox with key = seed (low word first) and counter =
/// (token index low, id, token index high, 0). Counters with a last word other than 0 are free for
/// other uses.
CONVOY_DRAW uint32_t random_word(uint64_t seed, uint64_t token_index, int32_t id) {
  const PhiloxWords counter = {{static_cast<uint32_t>(token_index), static_cast<uint32_t>(id),
                                static_cast<uint32_t>(token_index >> 32), 0}};
  return philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32))
      .word[0];
}

/// exponent * ln 2 + log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]. The polynomial is a minimax
/// fit of (log(1 + f) - f) / f^2 with 4.1e-9 relative error of the logarithm before rounding.
CONVOY_DRAW float log_of_parts(float f, float exponent) {
  float p = -0x1.383028p-4F;
  p = fused_multiply_add(p, f, 0x1.084864p-3F);
  p = fused_multiply_add(p, f, -0x1.0f3764p-3F);
  p = fused_multiply_add(p, f, 0x1.22719cp-3F);
  p = fused_multiply_add(p, f, -0x1.54276ep-3F);
  p = fused_multiply_add(p, f, 0x1.99a3f2p-3F);
  p = fused_multiply_add(p, f, -0x1.000426p-2F);
  p = fused_multiply_add(p, f, 0x1.555550p-2F);
  p = fused_multiply_add(p, f, -0x1.fffff8p-2F);
  p = fused_multiply_add(p, multiply(f, f), f);
  return fused_multiply_add(exponent, 0x1.62e430p-1F, p);
}

/// A positive normal number as (1 + f) * 2^exponent with 1 + f in [sqrt(1/2), sqrt(2)).
struct LogParts {
  float f;
  float exponent;
};
CONVOY_DRAW LogParts log_parts(float z) {
  constexpr uint32_t kSqrtHalfBits = 0x3F3504F3U;
  const int32_t exponent = static_cast<int32_t>(bits_of(z) - kSqrtHalfBits) >> 23;
  const uint32_t mantissa_bits = bits_of(z) - (static_cast<uint32_t>(exponent) << 23);
  return {add(float_of(mantissa_bits), -1.0F), static_cast<float>(exponent)};
}

/// log z for a positive normal z.
CONVOY_DRAW float natural_log(float z) {
  const LogParts parts = log_parts(z);
  return log_of_parts(parts.f, parts.exponent);
}

/// -log u for u = (word + 0.5) * 2^-32, strictly inside (0, 1): from 2^-33 to 22.9. Where u is
/// above 1/2 it is computed from 1 - u = (~word + 0.5) * 2^-32, so that small results (the largest
/// noise) keep their relative precision. `word + 0.5` and
/// `~word + 0.5` are rounded to f32 once each for the conversion and the sum.
CONVOY_DRAW float negative_log_uniform(uint32_t word) {
  constexpr float kOneMinusSqrtHalf = 0x1.2bec34p-2F;
  const bool upper = (word >> 31) != 0;
  const uint32_t folded = upper ? ~word : word;
  // At most 2^31 - 1, so the signed conversion is right, and it exists in every vector instruction
  // set.
  const float tail =
      multiply(add(static_cast<float>(static_cast<int32_t>(folded)), 0.5F), 0x1p-32F);
  const LogParts small = log_parts(tail);
  // 1 - tail is 1 + f or (1 + f) / 2, f exact.
  const bool halved = tail > kOneMinusSqrtHalf;
  const float halved_f = add(1.0F, -multiply(2.0F, tail));
  const float upper_f = halved ? halved_f : -tail;
  const float upper_exponent = halved ? -1.0F : 0.0F;
  return -log_of_parts(upper ? upper_f : small.f, upper ? upper_exponent : small.exponent);
}

/// No noise is above this (u = 1 - 2^-33).
constexpr float kLargestNoise = 22.875F;

/// The noise of `id`: -log(-log u), at least -3.2.
CONVOY_DRAW float gumbel_noise(uint64_t seed, uint64_t token_index, int32_t id) {
  return -natural_log(negative_log_uniform(random_word(seed, token_index, id)));
}

/// (logit - largest) / temperature: 0 for the largest logit (an infinite one too), below 0 for all
/// others. NaN stays NaN, -infinity stays -infinity.
CONVOY_DRAW float scaled_logit(float logit, float largest, float temperature) {
  const float scaled = divide(add(logit, -largest), temperature);
  return logit == largest ? 0.0F : scaled;
}

/// exp x for x <= 0: exactly 1 at 0, and 0 for NaN and below -86 (where no caller tells it from 0).
CONVOY_DRAW float exp_weight(float x) {
  constexpr float kLowest = -86.0F;
  // Adding it leaves the nearest integer in the low mantissa bits.
  constexpr float kRounder = 0x1.8p23F;
  const bool counts = x >= kLowest;
  const float safe = counts ? x : 0.0F;
  const float shifted = fused_multiply_add(safe, 0x1.715476p+0F, kRounder);
  const float n = add(shifted, -kRounder);
  float r = fused_multiply_add(n, -0x1.62e430p-1F, safe);
  r = fused_multiply_add(n, 0x1.05c610p-29F, r);
  // Minimax fit of (exp r - 1 - r) / r^2, 3.1e-9 relative error of the exponential before rounding.
  float p = 0x1.6a25c0p-10F;
  p = fused_multiply_add(p, r, 0x1.1239d4p-7F);
  p = fused_multiply_add(p, r, 0x1.5558eep-5F);
  p = fused_multiply_add(p, r, 0x1.555492p-3F);
  p = fused_multiply_add(p, r, 0x1.fffffcp-2F);
  p = add(fused_multiply_add(p, multiply(r, r), r), 1.0F);
  const uint32_t power_bits = (bits_of(shifted) - bits_of(kRounder) + 127U) << 23;
  const float weight = multiply(p, float_of(power_bits));
  return counts ? weight : 0.0F;
}

/// Weights are summed as integers, so that sums are exact whatever their order: 2^40 stands for
/// weight 1, fractions are cut off. 2^23 ids fit.
CONVOY_DRAW uint64_t weight_mass(float weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(multiply(weight, 0x1p40F)));
}

}  // namespace convoy::draw
