// What the attention kernels share: rows, pages, the softmax step and the gate.
//
// The query heads of one KV head read the same keys, so a lane's (column, head of the group) pairs
// are the rows of one matrix: row = column * group + head. A tile is a run of such rows. Which tile
// a row falls in never changes its bits: every row of a tile goes through the same pages from
// position 0, and a page that it may not read is an exact no-op (weights 0, rescaling by 1).
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/mma.cuh"
#include "kernels/ops/op_set.h"

namespace convoy::cuda {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float sigmoid_fast(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

/// Factor of the scores that makes exp2 of them the softmax's exponentials.
__device__ __forceinline__ float score_scale(int head_dim) {
  return 1.4426950408889634F / sqrtf(static_cast<float>(head_dim));
}

__device__ __forceinline__ int live_columns(const StepView& step, int lane) {
  return max(0, min(step.control[lane * step.width].valid_columns, step.width));
}

/// The pages of a lane's sequence.
__device__ __forceinline__ const int32_t* pages_of(const KvPlanes& cache, const StepView& step,
                                                   int lane) {
  return cache.block_tables +
         static_cast<ptrdiff_t>(step.control[lane * step.width].kv_row) * cache.max_pages_per_row;
}

/// Where one KV head's [64, head_dim] of a page starts in a plane.
__device__ __forceinline__ ptrdiff_t page_offset(const KvPlanes& cache, int page, int kv_head) {
  return (static_cast<ptrdiff_t>(page) * cache.kv_heads + kv_head) * kPageTokens * cache.head_dim;
}

__device__ __forceinline__ const __nv_bfloat16* query_of(const PagedAttentionArgs& args, int column,
                                                         int head) {
  return static_cast<const __nv_bfloat16*>(args.q) + column * args.q_column_stride +
         head * args.q_head_stride;
}
__device__ __forceinline__ const __nv_bfloat16* gate_of(const PagedAttentionArgs& args, int column,
                                                        int head) {
  return static_cast<const __nv_bfloat16*>(args.gate) + column * args.gate_column_stride +
         head * args.gate_head_stride;
}
__device__ __forceinline__ __nv_bfloat16* output_of(const PagedAttentionArgs& args, int column,
                                                    int head) {
  return static_cast<__nv_bfloat16*>(args.out) +
         (static_cast<ptrdiff_t>(column) * args.heads + head) * args.cache.head_dim;
}

/// A run of one lane's rows of one KV head.
struct QueryTile {
  int lane_start;  ///< the lane's first column
  int kv_head;
  int group;
  int first_row;
  int rows;           ///< that are live; 0 or less: none
  int last_position;  ///< of the last live row

  __device__ int column_of(int row) const { return lane_start + (first_row + row) / group; }
  __device__ int head_of(int row) const { return kv_head * group + (first_row + row) % group; }
  /// -1: the row is no live column's.
  __device__ int position_of(const PagedAttentionArgs& args, int row) const {
    return row < rows ? args.step.control[column_of(row)].cache_position : -1;
  }
};

/// Up to `tile_rows` rows of a lane from first_row on.
__device__ __forceinline__ QueryTile make_tile(const PagedAttentionArgs& args, int lane,
                                               int kv_head, int first_row, int tile_rows) {
  QueryTile tile;
  tile.lane_start = lane * args.step.width;
  tile.kv_head = kv_head;
  tile.group = args.heads / args.cache.kv_heads;
  tile.first_row = first_row;
  tile.rows = min(tile_rows, live_columns(args.step, lane) * tile.group - first_row);
  tile.last_position = tile.rows > 0 ? tile.position_of(args, tile.rows - 1) : -1;
  return tile;
}

/// Zeros for the tile's rows of dead columns.
__device__ __forceinline__ void clear_dead_rows(const PagedAttentionArgs& args,
                                                const QueryTile& tile, int tile_rows, int threads) {
  const int chunks = args.cache.head_dim / 8;
  const int first = max(tile.rows, 0);
  const int end = min(tile_rows, args.step.width * tile.group - tile.first_row);
  for (int i = static_cast<int>(threadIdx.x); i < (end - first) * chunks; i += threads) {
    const int row = first + i / chunks;
    auto* const out = output_of(args, tile.column_of(row), tile.head_of(row));
    *reinterpret_cast<uint4*>(out + i % chunks * 8) = uint4{};
  }
}

/// One thread's part of a tile of rows, after the layout of mma_bf16's results: it holds two rows,
/// g and g + 8, and of each 8 values' columns the pair 2t, 2t+1.
struct SoftmaxRows {
  float maximum[2] = {-INFINITY, -INFINITY};  // of the scores times score_scale
  float sum[2] = {0.0F, 0.0F};                // this thread's part
  float rescale[2] = {1.0F, 1.0F};            // of what was summed before the last step
};

/// One online-softmax step over a page: turns scores into weights. Keys beyond last_key[r] (counted
/// from the page's first) weigh nothing. kMasked false: every row reads the whole page.
template <bool kMasked>
__device__ __forceinline__ void softmax_step(float (&scores)[kPageTokens / 8][4], float scale,
                                             const int (&last_key)[2], SoftmaxRows& rows) {
  const int first_key = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kPageTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * r + i];
        if (kMasked && 8 * n + first_key + i > last_key[r]) score = -INFINITY;
        largest = fmaxf(largest, score);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
    const float maximum = fmaxf(rows.maximum[r], largest * scale);
    // Rows that are no query's have read nothing yet: -inf - -inf would be NaN.
    const float base = kMasked && maximum == -INFINITY ? 0.0F : maximum;
    rows.rescale[r] = exp2_fast(rows.maximum[r] - base);
    rows.maximum[r] = maximum;
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < kPageTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * r + i];
        score = exp2_fast(fmaf(score, scale, -base));
        sum += score;
      }
    }
    rows.sum[r] = fmaf(rows.sum[r], rows.rescale[r], sum);
  }
}

/// 1 / the sum over all keys, for both rows.
__device__ __forceinline__ void inverse_sums(const SoftmaxRows& rows, float (&inverse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    inverse[r] = sum > 0.0F ? 1.0F / sum : 0.0F;
  }
}

/// Stores what a thread has of rows `row` and row + 8 (of the tile), gated.
template <int kEighths>
__device__ __forceinline__ void store_rows(const PagedAttentionArgs& args, const QueryTile& tile,
                                           int row, const float (&out)[kEighths][4],
                                           const SoftmaxRows& softmax) {
  constexpr int kBatch = 8;  // gates that are read at once, for their latency's sake
  float inverse[2];
  inverse_sums(softmax, inverse);
  const int first = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= tile.rows) continue;
    const int column = tile.column_of(row + 8 * r);
    const int head = tile.head_of(row + 8 * r);
    __nv_bfloat16* const to = output_of(args, column, head) + first;
    const __nv_bfloat16* const gate = gate_of(args, column, head) + first;
#pragma unroll
    for (int batch = 0; batch < kEighths; batch += kBatch) {
      uint32_t gates[kBatch] = {};
      if (args.gate != nullptr) {
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          const int d = 8 * (batch + n);
          if (d < args.cache.head_dim) gates[n] = *reinterpret_cast<const uint32_t*>(gate + d);
        }
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int d = 8 * (batch + n);
        if (d >= args.cache.head_dim) break;
        float low = out[batch + n][2 * r] * inverse[r];
        float high = out[batch + n][2 * r + 1] * inverse[r];
        if (args.gate != nullptr) {
          low *= sigmoid_fast(__uint_as_float(gates[n] << 16));
          high *= sigmoid_fast(__uint_as_float(gates[n] & 0xFFFF0000U));
        }
        *reinterpret_cast<uint32_t*>(to + d) = pack_bf16(low, high);
      }
    }
  }
}

/// The weights of 16 keys (mma_bf16's left operand) from those that softmax_step left.
__device__ __forceinline__ void pack_weights(const float (&weights)[kPageTokens / 8][4], int step,
                                             uint32_t (&packed)[4]) {
  packed[0] = pack_bf16(weights[2 * step][0], weights[2 * step][1]);
  packed[1] = pack_bf16(weights[2 * step][2], weights[2 * step][3]);
  packed[2] = pack_bf16(weights[2 * step + 1][0], weights[2 * step + 1][1]);
  packed[3] = pack_bf16(weights[2 * step + 1][2], weights[2 * step + 1][3]);
}

}  // namespace convoy::cuda
