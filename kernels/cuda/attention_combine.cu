// The second half of generated-class attention: adds the splits of every row.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/scratch.h"

namespace convoy::cuda {
namespace {

// Split s belongs to group s % kGroups; a group adds its splits in order, and the groups' sums are
// added in order.
constexpr int kGroups = 8;
constexpr int kVector = 4;  // values of a thread
constexpr int kMaxVectors = kMaxAttentionDim / kVector;

__device__ __forceinline__ void add_scaled(float4& total, float weight, const float4& values) {
  total.x = fmaf(weight, values.x, total.x);
  total.y = fmaf(weight, values.y, total.y);
  total.z = fmaf(weight, values.z, total.z);
  total.w = fmaf(weight, values.w, total.w);
}

// A row's partial results, as one thread adds them.
struct Partials {
  const float2* sums;   // of the row's first split
  const float* values;  // this thread's, of the row's first split; null: it has none
  int head_dim;
  int splits;

  __device__ __forceinline__ float4 values_of(int split) const {
    return __ldcg(
        reinterpret_cast<const float4*>(values + static_cast<ptrdiff_t>(split) * head_dim));
  }
};

// The largest score of a row, found by every warp for itself; `first` is that of split `lane`.
__device__ __forceinline__ float largest_score(const Partials& partials, float first) {
  float largest = first;
  for (int split = static_cast<int>(threadIdx.x % 32) + 32; split < partials.splits; split += 32)
    largest = fmaxf(largest, __ldcg(&partials.sums[split]).x);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, distance));
  return largest;
}

// Adds this group's of the 32 splits from `first` on; `part` is that of split first + l in thread l
// (nothing beyond the last split), `early` the values of the group's first one.
__device__ __forceinline__ void add_splits(const Partials& partials, int first, const float2& part,
                                           float largest, const float4& early, float4& total,
                                           float& sum) {
  const float weight = exp2_fast(part.x - largest);
  const float weighted = weight * part.y;
#pragma unroll
  for (int i = 0; i < 32 / kGroups; ++i) {
    const int offset = static_cast<int>(threadIdx.y) + i * kGroups;
    const float w = __shfl_sync(~0U, weight, offset);
    const float s = __shfl_sync(~0U, weighted, offset);
    if (first + offset >= partials.splits) continue;
    sum += s;
    if (partials.values == nullptr) continue;
    add_scaled(total, w, i == 0 ? early : partials.values_of(first + offset));
  }
}

// This group's part of a row's weighted values and of its sum. `room`: splits that there is memory
// for. What surely exists is read before it is known how many splits the row has.
__device__ __forceinline__ void add_group(Partials partials, const ControlRow* control, bool live,
                                          int room, float4& total, float& sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group = static_cast<int>(threadIdx.y);
  const float2 nothing = make_float2(-INFINITY, 0.0F);
  float2 part = lane < room ? __ldcg(&partials.sums[lane]) : nothing;
  float4 early{};
  if (partials.values != nullptr && group < room) early = partials.values_of(group);
  partials.splits = live ? attention_splits(control->cache_position + 1) : 0;
  if (lane >= partials.splits) part = nothing;
  const float largest = largest_score(partials, part.x);
#pragma unroll 1
  for (int first = 0; first < partials.splits; first += 32) {
    if (first > 0) {
      part = first + lane < partials.splits ? __ldcg(&partials.sums[first + lane]) : nothing;
      if (partials.values != nullptr && first + group < partials.splits)
        early = partials.values_of(first + group);
    }
    add_splits(partials, first, part, largest, early, total, sum);
  }
}

// A block (whole warps that cover head_dim / 4, kGroups) per column and head.
__global__ void __launch_bounds__(kMaxVectors* kGroups) combine_kernel(GeneratedPass pass) {
  __shared__ float4 group_values[kGroups][kMaxVectors];
  __shared__ float group_sum[kGroups];
  allow_dependents();
  grid_dependency_wait();
  const PagedAttentionArgs& args = pass.args;
  const int row = static_cast<int>(blockIdx.x);
  const int column = row / args.heads;
  const int head = row % args.heads;
  const int head_dim = args.cache.head_dim;
  const int d = static_cast<int>(threadIdx.x) * kVector;
  const int group = static_cast<int>(threadIdx.y);
  __nv_bfloat16* const out = output_of(args, column, head) + d;
  uint2 gate{};
  if (group == 0 && d < head_dim && args.gate != nullptr)
    gate = *reinterpret_cast<const uint2*>(gate_of(args, column, head) + d);
  const ControlRow* const control = args.step.control + column;
  const bool live = column % args.step.width < control->valid_columns - pass.columns_before;
  const ptrdiff_t first = static_cast<ptrdiff_t>(row) * pass.splits;
  const float* const values = d < head_dim ? pass.values + first * head_dim + d : nullptr;
  float4 total{};
  float sum = 0.0F;
  add_group({pass.sums + first, values, head_dim, 0}, control, live, pass.splits, total, sum);
  if (!live) {
    if (group == 0 && d < head_dim) *reinterpret_cast<uint2*>(out) = uint2{};
    return;
  }
  group_values[group][threadIdx.x] = total;
  if (threadIdx.x == 0) group_sum[group] = sum;
  __syncthreads();
  if (group != 0 || d >= head_dim) return;
#pragma unroll
  for (int other = 1; other < kGroups; ++other) {
    add_scaled(total, 1.0F, group_values[other][threadIdx.x]);
    sum += group_sum[other];
  }
  const float inverse = 1.0F / sum;
  float result[kVector] = {total.x * inverse, total.y * inverse, total.z * inverse,
                           total.w * inverse};
  if (args.gate != nullptr) {
    float gates[kVector];
    unpack_bf16(gate.x, gates[0], gates[1]);
    unpack_bf16(gate.y, gates[2], gates[3]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) result[i] *= sigmoid_fast(gates[i]);
  }
  *reinterpret_cast<uint2*>(out) =
      make_uint2(pack_bf16(result[0], result[1]), pack_bf16(result[2], result[3]));
}

}  // namespace

void combine_splits(cudaStream_t stream, const GeneratedPass& pass) {
  const auto rows = static_cast<unsigned>(pass.args.step.columns() * pass.args.heads);
  const int vectors = pass.args.cache.head_dim / kVector;
  launch(
      combine_kernel,
      {.grid = dim3(rows), .block = dim3(static_cast<unsigned>((vectors + 31) / 32 * 32), kGroups)},
      stream, pass);
}

}  // namespace convoy::cuda
