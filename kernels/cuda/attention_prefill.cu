// Prompt-class attention with the matrix instructions that every card has: a block takes 64 rows
// and goes through the pages of their sequence; a warp owns 16 rows. Keys of the next page arrive
// while the values of this one are used, and the other way round. Quantised ones arrive as they are
// stored, and become bf16 in a tile that keys and values take turns in.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/kv_dtype.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kThreads = 128;

// 16-byte chunk `chunk` of a row of kDim values in shared memory: neighbouring rows are permuted so
// that eight rows' equal chunks lie in different banks.
template <int kDim>
__device__ __forceinline__ __nv_bfloat16* chunk_at(__nv_bfloat16* tile, int row, int chunk) {
  return tile + row * kDim + ((chunk ^ (row & 7)) * 8);
}

template <int kDim, KvDtype kDtype>
struct PromptShared {
  __nv_bfloat16 q[kRows * kDim];
  __nv_bfloat16 tile[kPageTokens * kDim];
  std::byte k[kv_block_bytes(kDtype, kDim)];
  std::byte v[kv_block_bytes(kDtype, kDim)];
};
template <int kDim>
struct PromptShared<kDim, KvDtype::bf16> {
  __nv_bfloat16 q[kRows * kDim];
  __nv_bfloat16 k[kPageTokens * kDim];
  __nv_bfloat16 v[kPageTokens * kDim];
};

template <int kDim>
__device__ void load_queries(const PagedAttentionArgs& args, const QueryTile& tile,
                             __nv_bfloat16* q) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim / 8; i += kThreads) {
    const int row = i / (kDim / 8);
    const int chunk = i % (kDim / 8);
    const bool valid = row < tile.rows && chunk * 8 < args.cache.head_dim;
    const auto* const from =
        valid ? query_of(args, tile.column_of(row), tile.head_of(row)) + chunk * 8
              : static_cast<const __nv_bfloat16*>(args.q);
    copy_async_16(chunk_at<kDim>(q, row, chunk), from, valid);
  }
}

// Keys beyond `tokens` become zeros: what lies there may be NaN, and weight 0 would not hide it.
template <int kDim>
__device__ void load_page(const __nv_bfloat16* page, int head_dim, int tokens,
                          __nv_bfloat16* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kDim / 8; i += kThreads) {
    const int key = i / (kDim / 8);
    const int chunk = i % (kDim / 8);
    const bool valid = key < tokens && chunk * 8 < head_dim;
    copy_async_16(chunk_at<kDim>(tile, key, chunk),
                  valid ? page + key * head_dim + chunk * 8 : page, valid);
  }
}

// A block as bf16, filled up to kDim with zeros.
template <int kDim, KvDtype kDtype>
__device__ __forceinline__ void widen_block(const std::byte* block, int head_dim,
                                            __nv_bfloat16* tile) {
  constexpr int kChunks = kDim / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kChunks; i += kThreads) {
    const int key = i / kChunks;
    const int chunk = i % kChunks;
    uint4 low{};
    uint4 high{};
    if (chunk * 16 < head_dim) {
      const uint4 raw = *reinterpret_cast<const uint4*>(block + key * head_dim + chunk * 16);
      const KvScale<kDtype> scale(stored_scale(block, head_dim, key, chunk * 16 / kKvScaleGroup));
      low = widen_kv_to_bf16(raw.x, raw.y, scale);
      high = widen_kv_to_bf16(raw.z, raw.w, scale);
    }
    *reinterpret_cast<uint4*>(chunk_at<kDim>(tile, key, 2 * chunk)) = low;
    *reinterpret_cast<uint4*>(chunk_at<kDim>(tile, key, 2 * chunk + 1)) = high;
  }
  __syncthreads();
}

template <int kDim>
__device__ __forceinline__ void score_page(__nv_bfloat16* q, __nv_bfloat16* k,
                                           float (&scores)[kPageTokens / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16;
#pragma unroll
  for (auto& score : scores) score[0] = score[1] = score[2] = score[3] = 0.0F;
#pragma unroll 4
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4];
    load_matrices(a, chunk_at<kDim>(q, first_row + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int n = 0; n < kPageTokens / 16; ++n) {
      uint32_t b[4];
      const int key = 16 * n + lane % 8 + lane / 16 * 8;
      load_matrices(b, chunk_at<kDim>(k, key, 2 * step + lane / 8 % 2));
      mma_bf16(scores[2 * n], a, {b[0], b[1]});
      mma_bf16(scores[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(const float (&weights)[kPageTokens / 8][4],
                                           __nv_bfloat16* v, float (&out)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step) {
    uint32_t a[4];
    pack_weights(weights, step, a);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      load_matrices_transposed(b, chunk_at<kDim>(v, 16 * step + lane % 16, 2 * n + lane / 16));
      mma_bf16(out[2 * n], a, {b[0], b[1]});
      mma_bf16(out[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

template <int kDim, KvDtype kDtype>
__device__ void attend_tile(const PagedAttentionArgs& args, const QueryTile& tile,
                            PromptShared<kDim, kDtype>& shared) {
  const int32_t* const pages = pages_of(args.cache, args.step, tile.lane_start / args.step.width);
  const int head_dim = args.cache.head_dim;
  const float scale = score_scale(head_dim);
  const auto load = [&](void* plane, int page, auto* to) {
    const int tokens = tile.last_position + 1 - page * kPageTokens;
    if constexpr (kDtype == KvDtype::bf16) {
      const auto* const from = static_cast<const __nv_bfloat16*>(plane) +
                               page_offset(args.cache, pages[page], tile.kv_head);
      load_page<kDim>(from, head_dim, tokens, to);
    } else {
      copy_block_async<kDtype>(kv_block<kDtype>(args.cache, plane, pages[page], tile.kv_head),
                               head_dim, min(tokens, kPageTokens), kThreads, to);
    }
    commit_copies();
  };
  // What has arrived, as bf16.
  const auto widened = [&](auto* arrived) {
    if constexpr (kDtype == KvDtype::bf16) {
      return arrived;
    } else {
      widen_block<kDim, kDtype>(arrived, head_dim, shared.tile);
      return static_cast<__nv_bfloat16*>(shared.tile);
    }
  };
  const int row = static_cast<int>(threadIdx.x / 32) * 16 + static_cast<int>(threadIdx.x % 32) / 4;
  const int position[2] = {tile.position_of(args, row), tile.position_of(args, row + 8)};
  const int count = tile.last_position / kPageTokens + 1;
  SoftmaxRows softmax;
  float out[kDim / 8][4] = {};
  load_queries<kDim>(args, tile, shared.q);
  load(args.cache.k, 0, shared.k);
  for (int page = 0; page < count; ++page) {
    load(args.cache.v, page, shared.v);
    wait_copies<1>();
    __syncthreads();
    float scores[kPageTokens / 8][4];
    score_page<kDim>(shared.q, widened(shared.k), scores);
    __syncthreads();
    if (page + 1 < count) {
      load(args.cache.k, page + 1, shared.k);
    } else {
      commit_copies();
    }
    const int last_key[2] = {position[0] - page * kPageTokens, position[1] - page * kPageTokens};
    softmax_step<true>(scores, scale, last_key, softmax);
#pragma unroll
    for (auto& values : out) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= softmax.rescale[i / 2];
    }
    wait_copies<1>();
    __syncthreads();
    add_values<kDim>(scores, widened(shared.v), out);
    __syncthreads();
  }
  store_rows(args, tile, row, out, softmax);
}

template <int kDim, KvDtype kDtype>
__global__ void __launch_bounds__(kThreads) prompt_attention(PagedAttentionArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  allow_dependents();
  grid_dependency_wait();
  // Later rows have more to read: they go first.
  const QueryTile tile = make_tile(args, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                                   static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows, kRows);
  clear_dead_rows(args, tile, kRows, kThreads);
  if (tile.rows <= 0) return;
  attend_tile<kDim, kDtype>(args, tile, *reinterpret_cast<PromptShared<kDim, kDtype>*>(memory));
}

template <int kDim, KvDtype kDtype>
void launch_prompt(cudaStream_t stream, const PagedAttentionArgs& args) {
  constexpr size_t kBytes = sizeof(PromptShared<kDim, kDtype>);
  allow_shared_bytes<prompt_attention<kDim, kDtype>>(kBytes);
  const int rows = args.step.width * (args.heads / args.cache.kv_heads);
  const dim3 grid(static_cast<unsigned>((rows + kRows - 1) / kRows),
                  static_cast<unsigned>(args.cache.kv_heads),
                  static_cast<unsigned>(args.step.lanes));
  launch(prompt_attention<kDim, kDtype>,
         {.grid = grid, .block = dim3(kThreads), .shared_bytes = kBytes}, stream, args);
}

}  // namespace

void attend_prompt(cudaStream_t stream, const PagedAttentionArgs& args) {
  with_kv_dtype(args.cache.dtype, [&](auto dtype) {
    if (args.cache.head_dim <= 64) {
      launch_prompt<64, dtype>(stream, args);
    } else if (args.cache.head_dim <= 128) {
      launch_prompt<128, dtype>(stream, args);
    } else {
      launch_prompt<256, dtype>(stream, args);
    }
  });
}

}  // namespace convoy::cuda
