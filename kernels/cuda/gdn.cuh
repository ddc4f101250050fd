// What the kernels of Gated DeltaNet layers share: gates, SiLU, sums over a warp and where a lane's
// state lies.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>

#include "kernels/ops/step.h"

namespace convoy::cuda {

/// What is added to a sum of squares before a query or key is scaled to unit length.
inline constexpr float kUnitEps = 1e-6F;

__device__ __forceinline__ float silu_of(float x) {
  return __fdividef(x, 1.0F + __expf(-x));
}

/// The logarithm of a column's decay: -exp(a_log) * softplus(x). Above 20 softplus is x to the last
/// bit, and its exponential might overflow.
__device__ __forceinline__ float log_decay(float a_log, float x) {
  return -expf(a_log) * (x > 20.0F ? x : log1pf(expf(x)));
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

/// The same sum in every thread of the warp, always added in the same order.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xFFFFFFFFU, x, distance);
  return x;
}

/// Columns of a lane that are alive.
__device__ __forceinline__ int live_columns(const ControlRow& control, int width) {
  return max(0, min(control.valid_columns, width));
}

/// Slot `slot` of a state whose slots hold `size` values each; null for the zero state.
__device__ __forceinline__ float* state_slot(float* state, int slot, ptrdiff_t size) {
  return slot < 0 ? nullptr : state + slot * size;
}

}  // namespace convoy::cuda
