// The exponential and what is built from it, 16 lanes at a time.
#pragma once

#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

/// e^x, within 2 ulp. Gradual underflow, 0 below -104, infinity above 88.73; NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln(2)/2, a polynomial for e^r, then 2^n in two factors so that both
/// ends round correctly.
CONVOY_SIMD Vec exp(Vec x) {
  x = min(set1(89.0F), max(set1(-105.0F), x));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the float.
  const Vec magic = set1(12582912.0F);
  const Vec shifted = fma(x, set1(1.44269504F), magic);
  const Vec n = sub(shifted, magic);
  Vec r = fma(n, set1(-0x1.62e430p-1F), x);
  r = fma(n, set1(0x1.05c610p-29F), r);
  Vec p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  p = add(fma(p, mul(r, r), r), set1(1.0F));
  const IntVec exponent = sub_int(bits(shifted), bits(magic));
  const IntVec half = half_int(exponent);
  const IntVec bias = set1_int(127);
  const Vec first = from_bits(to_exponent_field(add_int(half, bias)));
  const Vec second = from_bits(to_exponent_field(add_int(sub_int(exponent, half), bias)));
  return mul(mul(p, first), second);
}

/// The same bits as a lane of the vector form.
CONVOY_SIMD float exp1(float x) {
  float lanes[kLanes];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

CONVOY_SIMD Vec one_plus_exp_minus(Vec x) {
  return add(set1(1.0F), exp(sub(zero(), x)));
}
CONVOY_SIMD Vec sigmoid(Vec x) {
  return div(set1(1.0F), one_plus_exp_minus(x));
}
CONVOY_SIMD Vec silu(Vec x) {
  return div(x, one_plus_exp_minus(x));
}

}  // namespace
}  // namespace convoy::cpu
