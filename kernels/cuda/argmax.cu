#include <cooperative_groups.h>

#include <climits>

#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kThreads = 512;
// Blocks of one row. Where the architecture has clusters they share the row and meet in shared
// memory; elsewhere the first one does it all.
constexpr int kBlocks = 8;
#if __CUDA_ARCH__ >= 900
#define CONVOY_ROW_CLUSTER __cluster_dims__(kBlocks, 1, 1)
#else
#define CONVOY_ROW_CLUSTER
#endif

struct Best {
  uint32_t rank;  // orders values as `>` does; both zeros are equal; 0 for NaN, which is below all
  int32_t index;
};

__device__ __forceinline__ uint32_t rank_of(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value + 0.0F);  // -0 + 0 is 0
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

__device__ __forceinline__ Best better(Best a, Best b) {
  return b.rank > a.rank || (b.rank == a.rank && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Best other = {__shfl_xor_sync(0xFFFFFFFFU, best.rank, distance),
                        __shfl_xor_sync(0xFFFFFFFFU, best.index, distance)};
    best = better(best, other);
  }
  return best;
}

// The best of the logits that thread `thread` of `threads` reads. They come in ascending order, so
// that a later equal never replaces an earlier one.
template <bool kVectorised>
__device__ __forceinline__ Best best_of_thread(const float* logits, int valid, int thread,
                                               int threads) {
  Best best = {0, INT_MAX};
  const auto consider = [&](float value, int index) {
    const uint32_t rank = rank_of(value);
    if (rank > best.rank || best.index == INT_MAX) best = {rank, index};
  };
  const int vectors = kVectorised ? valid / 4 : 0;
#pragma unroll 4
  for (int v = thread; v < vectors; v += threads) {
    const float4 four = reinterpret_cast<const float4*>(logits)[v];
    consider(four.x, 4 * v);
    consider(four.y, 4 * v + 1);
    consider(four.z, 4 * v + 2);
    consider(four.w, 4 * v + 3);
  }
#pragma unroll 4
  for (int i = 4 * vectors + thread; i < valid; i += threads) consider(logits[i], i);
  return best;
}

template <bool kVectorised>
__global__ void CONVOY_ROW_CLUSTER __launch_bounds__(kThreads)
    argmax_kernel(const float* logits, ptrdiff_t row_stride, int valid, int32_t* ids) {
  __shared__ Best of_warps[kThreads / 32];
  __shared__ Best of_blocks[kBlocks];
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const float* const row = logits + static_cast<ptrdiff_t>(blockIdx.y) * row_stride;
#if __CUDA_ARCH__ >= 900
  constexpr int kParts = kBlocks;
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();  // waited for before one block writes into another
#else
  constexpr int kParts = 1;
  if (block > 0) return;
#endif
  const Best mine =
      best_of_thread<kVectorised>(row, valid, block * kThreads + thread, kParts * kThreads);
  const Best of_warp = best_of_warp(mine);
  if (thread % 32 == 0) of_warps[thread / 32] = of_warp;
#if __CUDA_ARCH__ >= 900
  cluster.barrier_wait();
#endif
  __syncthreads();
  if (thread < 32) {
    const Best of_block =
        best_of_warp(thread < kThreads / 32 ? of_warps[thread] : Best{0, INT_MAX});
#if __CUDA_ARCH__ >= 900
    if (thread == 0) *cluster.map_shared_rank(&of_blocks[block], 0) = of_block;
#else
    if (thread == 0) of_blocks[0] = of_block;
#endif
  }
#if __CUDA_ARCH__ >= 900
  cluster.sync();
#endif
  if (block > 0 || thread > 0) return;
  Best best = of_blocks[0];
  for (int i = 1; i < kParts; ++i) best = better(best, of_blocks[i]);
  ids[blockIdx.y] = best.index;
}

}  // namespace

void CudaOpSet::argmax(Stream& stream, const ArgmaxArgs& args) {
  CONVOY_CHECK_OP(args.valid, >, 0);
  CONVOY_CHECK_OP(args.row_stride, >=, args.valid);
  if (args.rows == 0) return;
  const bool vectorised =
      reinterpret_cast<uintptr_t>(args.logits) % 16 == 0 && args.row_stride % 4 == 0;
  cuda::launch(vectorised ? argmax_kernel<true> : argmax_kernel<false>,
               {.grid = dim3(kBlocks, static_cast<unsigned>(args.rows)), .block = dim3(kThreads)},
               handle_of(stream), args.logits, args.row_stride, args.valid, args.ids);
}

}  // namespace convoy
