// RMS norms: one row (of one group) at a time.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

CONVOY_SIMD float inverse_rms(const float* x, int size, float eps) {
  Vec squares = zero();
  for (int i = 0; i < size; i += kLanes) {
    const Vec value = load_first(x + i, size - i);
    squares = fma(value, value, squares);
  }
  return 1.0F / std::sqrt(sum_lanes(squares) / static_cast<float>(size) + eps);
}

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const Vec offset = set1(args.zero_centred ? 1.0F : 0.0F);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index / args.groups;
    const int64_t group = index % args.groups;
    const float* x =
        static_cast<const float*>(args.x) + row * args.x_row_stride + group * args.x_group_stride;
    float* out =
        static_cast<float*>(args.out) + row * args.out_row_stride + group * args.out_group_stride;
    const Vec scale = set1(inverse_rms(x, args.size, args.eps));
    for (int i = 0; i < args.size; i += kLanes) {
      const int left = args.size - i;
      const Vec weight = add(load_first(args.weight + i, left), offset);
      store_first(out + i, mul(mul(load_first(x + i, left), scale), weight), left);
    }
  }
}

void gated_rms_norm_heads(const GatedRmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index / args.heads;
    const int64_t head = index % args.heads;
    const float* o = static_cast<const float*>(args.o) + index * args.size;
    const float* z = static_cast<const float*>(args.z) + row * args.z_row_stride + head * args.size;
    float* out = static_cast<float*>(args.out) + index * args.size;
    const Vec scale = set1(inverse_rms(o, args.size, args.eps));
    for (int i = 0; i < args.size; i += kLanes) {
      const int left = args.size - i;
      const Vec normed =
          mul(mul(load_first(o + i, left), scale), load_first(args.weight + i, left));
      store_first(out + i, mul(normed, silu(load_first(z + i, left))), left);
    }
  }
}

}  // namespace
}  // namespace convoy::cpu
