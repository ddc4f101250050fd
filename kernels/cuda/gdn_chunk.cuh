// What the two passes of gdn_chunk share. Both work on chunks of 64 columns at absolute positions.
//
// Pass 1 (gdn_chunk_prepare.cu), parallel over chunks, computes what depends on the chunk alone:
// with c the running sum of g inside the chunk, k and q of unit length,
//   A_ij = beta_i (k_i . k_j) exp(c_i - c_j) below the diagonal,   T = (I + A)^-1,
//   P_ij = (q_i . k_j) exp(c_i - c_j) on and below the diagonal.
// Pass 2 (gdn_chunk.cu) walks over the chunks with the state S [key_dim, value_dim]:
//   V'_i = sum_j T_ij beta_j (v_j - exp(c_j) S^T k_j),
//   o_i = exp(c_i) S^T q_i + sum_j P_ij V'_j,
//   S = exp(c_last) S + sum_j exp(c_last - c_j) k_j V'_j^T.
//
// Products run on bf16 tensor cores with f32 sums. Queries, keys and values are bf16 as stored and
// enter exactly (their scales to unit length are applied to f32 results); S, T, P, V' and what T is
// applied to are split into two bf16 terms, which keeps 16 bits of them. Short chunks are padded
// with columns of k = 0, beta = 0, g = 0.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/ops/op_set.h"
#include "kernels/ops/scratch.h"

namespace convoy::cuda {

inline constexpr int kChunk = kPageTokens;
inline constexpr int kChunkDim = 128;  ///< key_dim
static_assert(kChunk == 64);

/// A lower triangular [64, 64] matrix M as B fragments (mma.cuh) of its transpose, b[k = j][n = i]
/// = M_ij, a fragment of each term: rows 8r.. and columns 16c.. for c <= r / 2, row after row.
inline constexpr int kTriangleFragments = 20;
constexpr int triangle_fragment(int row, int column) {
  return (row / 2) * (row / 2 + 1) + (row % 2) * (row / 2 + 1) + column;
}
struct TriangleFragments {
  uint4 terms[kTriangleFragments][32];  ///< per thread: two registers of the high, two of the low
};

/// What pass 1 leaves for one chunk of one value head.
struct alignas(16) ChunkPart {
  TriangleFragments solve;  ///< T
  TriangleFragments read;   ///< P
  /// Per column: beta | beta exp(c) / |k| | exp(c) key_dim^-0.5 / |q| | exp(c_last - c) / |k|
  float4 factors[kChunk];
  float decay;  ///< exp(c_last)
  float unused[3];
};
static_assert(sizeof(ChunkPart) == kGdnChunkPartBytes);

/// Where the part of a chunk lies; chunks are counted inside the lane.
__device__ __forceinline__ ChunkPart* chunk_part(const GdnArgs& args, int lane, int chunk,
                                                 int head) {
  const int chunks = (args.step.width + kChunk - 1) / kChunk;
  return static_cast<ChunkPart*>(args.scratch) +
         (ptrdiff_t{lane} * chunks + chunk) * args.value_heads + head;
}

/// x = high + low up to 2^-17 of it, for two neighbouring values.
__device__ __forceinline__ void split_bf16(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack_bf16(x, y);
  low = pack_bf16(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xFFFF0000U));
}

/// Starts to copy rows [0, kChunk) of kColumns bf16 values to shared memory, rows from `live` on as
/// zeros. By `threads` threads, of which this one is number `thread`.
template <int kColumns, int kStride>
__device__ __forceinline__ void copy_rows(__nv_bfloat16* shared, const __nv_bfloat16* global,
                                          ptrdiff_t stride, int live, int threads, int thread) {
  constexpr int kPieces = kColumns / 8;
  for (int i = thread; i < kChunk * kPieces; i += threads) {
    const int row = i / kPieces, piece = i % kPieces;
    // A row that is not copied must still be an address inside the tensor.
    const ptrdiff_t from = row < live ? row * stride : 0;
    copy_async_16(shared + row * kStride + piece * 8, global + from + piece * 8, row < live);
  }
}

/// Pass 1. In gdn_chunk_prepare.cu.
void prepare_chunks(cudaStream_t stream, const GdnArgs& args);

}  // namespace convoy::cuda
