// Where the sums of a linear layer go.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>

#include "kernels/ops/op_set.h"

namespace convoy::cuda {

struct LinearOut {
  void* out;
  ptrdiff_t row_stride;
  bool accumulate, f32;

  explicit LinearOut(const LinearArgs& args)
      : out(args.out),
        row_stride(args.out_row_stride),
        accumulate(args.accumulate),
        f32(args.f32_out) {}

  __device__ __forceinline__ void store(int row, int feature, float sum) const {
    const ptrdiff_t at = row * row_stride + feature;
    if (f32) {
      static_cast<float*>(out)[at] = sum;
      return;
    }
    auto* to = static_cast<__nv_bfloat16*>(out) + at;
    *to = __float2bfloat16_rn(accumulate ? __bfloat162float(*to) + sum : sum);
  }
};

}  // namespace convoy::cuda
