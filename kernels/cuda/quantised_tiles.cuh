// Tiles of generated-class attention whose keys and values are quantised: they lie in shared memory
// as they are stored, and become bf16 in the registers of the warp that multiplies with them.
//
// Every value is read by one warp only (keys by two where rows fill four tiles), in words: so the
// matrix products see a head's values in another order than they lie in. A permutation of what is
// summed over (keys) changes nothing if queries have the same, one of the results (values) if they
// are stored accordingly.
#pragma once

#include "kernels/cuda/kv_dtype.cuh"

namespace convoy::cuda {

/// A copy of a block: [64][kDim] values, whose 16-byte chunks are permuted, then the scales.
template <int kDim, KvDtype kDtype>
struct QuantisedTile {
  std::byte bytes[kv_block_bytes(kDtype, kDim)];

  /// What a key's chunk numbers are combined with: eight threads that read chunks of two keys (as
  /// keys), or words of four keys two apart (as values), find them in different banks.
  __device__ static __forceinline__ int shift_of(int key) {
    return kDim >= 128 ? ((key & 6) ^ ((key & 1) << 2)) : (key >> 1 & 3);
  }
  /// Where value `d` of a key lies; neighbours up to d / 16 * 16 + 15 follow it.
  __device__ __forceinline__ const std::byte* at(int key, int d) const {
    return bytes + key * kDim + ((d / 16) ^ shift_of(key)) * 16 + d % 16;
  }
  /// The scale of value `d` of a key. Heads of fewer than kDim values have scales for as many.
  __device__ __forceinline__ KvScale<kDtype> scale_of(int key, int d, int head_dim) const {
    const int groups = kv_scale_groups(head_dim);
    const int group = min(d / kKvScaleGroup, groups - 1);
    return KvScale<kDtype>(reinterpret_cast<const __half*>(bytes + kPageTokens * kDim) +
                           key * groups + group);
  }

  /// Starts copying a block with all `threads` of the block. Tokens from `tokens` on and values
  /// from head_dim on become zeros: what lies there may be NaN, and weight 0 would not hide it.
  template <int kThreads>
  __device__ __forceinline__ void copy(const std::byte* block, int head_dim, int tokens) {
    constexpr int kChunks = kDim / 16;
    constexpr int kKeyStep = kThreads / kChunks;
    static_assert(kKeyStep % 8 == 0);  // a thread's chunks are permuted alike
    const int thread = static_cast<int>(threadIdx.x);
    const int first_key = thread / kChunks;
    const int d = thread % kChunks * 16;
    const std::byte* const from = block + first_key * head_dim + d;
    std::byte* const to = bytes + (at(first_key, d) - bytes);
#pragma unroll
    for (int key = 0; key < kPageTokens; key += kKeyStep) {
      copy_async_16(to + key * kDim, from + key * head_dim,
                    first_key + key < tokens && d < head_dim);
    }
    if constexpr (kDtype == KvDtype::int8) {
      const int token_bytes = 2 * kv_scale_groups(head_dim);
      if (16 * thread >= kPageTokens * token_bytes) return;
      copy_async_first(bytes + kPageTokens * kDim + 16 * thread,
                       block + kPageTokens * head_dim + 16 * thread,
                       max(0, min(tokens * token_bytes - 16 * thread, 16)));
    }
  }
};

/// Where the pair of values d, d + 1 of a query stands, so that it meets those that load_keys
/// gives.
__device__ __forceinline__ int place_of_pair(int d) {
  return d / 64 * 64 + d / 4 % 4 * 16 + d / 2 % 2 * 8 + d / 16 % 4 * 2;
}

/// Right operands of the products with keys first_key..first_key+7, sixteen values each, two of
/// them in `b[n]`: thread (g, t) has of key g the values 16t.. of every 64.
template <int kDim, KvDtype kDtype>
__device__ __forceinline__ void load_keys(const QuantisedTile<kDim, kDtype>& tile, int first_key,
                                          int head_dim, uint32_t (&b)[kDim / 32][4]) {
  const int key = first_key + static_cast<int>(threadIdx.x % 32) / 4;
  const int first = static_cast<int>(threadIdx.x % 4) * 16;
#pragma unroll
  for (int part = 0; part < kDim / 64; ++part) {
    const uint4 raw = *reinterpret_cast<const uint4*>(tile.at(key, 64 * part + first));
    const KvScale<kDtype> scale = tile.scale_of(key, 64 * part, head_dim);
    const uint4 low = widen_kv_to_bf16(raw.x, raw.y, scale);
    const uint4 high = widen_kv_to_bf16(raw.z, raw.w, scale);
    b[2 * part][0] = low.x;
    b[2 * part][1] = low.y;
    b[2 * part][2] = low.z;
    b[2 * part][3] = low.w;
    b[2 * part + 1][0] = high.x;
    b[2 * part + 1][1] = high.y;
    b[2 * part + 1][2] = high.z;
    b[2 * part + 1][3] = high.w;
  }
}

/// Right operands of the products with values first_dim..first_dim+kSlice-1 of keys
/// first_key..first_key+15, eight values each, two of them in b[n]: column g of operand j is value
/// first_dim + kSlice / 8 * g + j.
template <int kSlice, int kDim, KvDtype kDtype>
__device__ __forceinline__ void load_values(const QuantisedTile<kDim, kDtype>& tile, int first_key,
                                            int first_dim, int head_dim,
                                            uint32_t (&b)[kSlice / 16][4]) {
  constexpr int kWord = kSlice / 8;
  using Word = std::conditional_t<kWord == 4, uint32_t, uint16_t>;
  static_assert(sizeof(Word) == kWord);
  const int d = first_dim + static_cast<int>(threadIdx.x % 32) / 4 * kWord;
  first_key += static_cast<int>(threadIdx.x % 4) * 2;
  float values[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = first_key + i % 2 + i / 2 * 8;
    const Word word = *reinterpret_cast<const Word*>(tile.at(key, d));
    widen_kv(word, tile.scale_of(key, first_dim, head_dim), values[i]);
  }
#pragma unroll
  for (int j = 0; j < kWord; ++j) {
    b[j / 2][j % 2 * 2] = pack_bf16(values[0][j], values[1][j]);
    b[j / 2][j % 2 * 2 + 1] = pack_bf16(values[2][j], values[3][j]);
  }
}

}  // namespace convoy::cuda
