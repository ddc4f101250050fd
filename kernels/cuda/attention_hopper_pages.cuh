// How the pages that a tile of prompt-class attention reads get into shared memory on compute
// capability 9.0 (attention_prefill_hopper.cu computes with them). The copy engine puts bf16 keys
// and values where the matrix instructions read them, two pages of each ahead. Quantised ones
// arrive as they are stored, a page of each ahead, and a warpgroup makes them bf16 in that place.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dtype.cuh"

namespace convoy::cuda {

inline constexpr int kGroupRows = 64;
inline constexpr int kRows = 2 * kGroupRows;
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = 3 * kGroupThreads;
inline constexpr int kStages = 2;
// Values of one 128-byte row of what the matrix instructions read.
inline constexpr int kBlockDim = 64;

template <int kDim>
struct HopperShared {
  __nv_bfloat16 q[kDim / kBlockDim][kRows][kBlockDim];
  __nv_bfloat16 k[kStages][kDim / kBlockDim][kPageTokens][kBlockDim];
  __nv_bfloat16 v[kStages][kDim / kBlockDim][kPageTokens][kBlockDim];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

/// Quantised: what has arrived of the next keys and values.
template <int kDim, KvDtype kDtype>
struct QuantisedShared : HopperShared<kDim> {
  alignas(128) std::byte k_block[kv_block_bytes(kDtype, kDim)];
  alignas(128) std::byte v_block[kv_block_bytes(kDtype, kDim)];
  uint64_t k_arrived, v_arrived;
};

#ifdef CONVOY_HOPPER_CODE

inline constexpr int kWideners = 4;  // named barrier of the warpgroup that widens

template <int kDim>
__device__ void init_barriers(HopperShared<kDim>& shared, int groups) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&shared.k_full[stage], 1);
      init_barrier(&shared.v_full[stage], 1);
      init_barrier(&shared.k_empty[stage], groups * kGroupThreads / 32);
      init_barrier(&shared.v_empty[stage], groups * kGroupThreads / 32);
    }
    publish_barriers();
  }
  __syncthreads();
}

// One warp brings in every page that the tile reads.
template <int kDim>
__device__ void produce(const PagedAttentionArgs& args, const QueryTile& tile,
                        const CUtensorMap* keys, const CUtensorMap* values,
                        HopperShared<kDim>& shared) {
  constexpr int kPageBytes = kPageTokens * kDim * static_cast<int>(sizeof(__nv_bfloat16));
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int count = tile.last_position / kPageTokens + 1;
  const int32_t* const pages = pages_of(args.cache, args.step, tile.lane_start / args.step.width);
  for (int first = 0; first < count; first += 32) {
    const int page_of_lane = first + lane < count ? pages[first + lane] : 0;
    for (int i = 0; i < min(32, count - first); ++i) {
      const int page = __shfl_sync(~0U, page_of_lane, i);
      const int stage = (first + i) % kStages;
      const int parity = (first + i) / kStages % 2;
      if (lane != 0) continue;
      const int row = (page * args.cache.kv_heads + tile.kv_head) * kPageTokens;
      wait_barrier(&shared.k_empty[stage], parity ^ 1);
      arrive_expecting(&shared.k_full[stage], kPageBytes);
      copy_tensor_box(shared.k[stage], keys, 0, row, 0, &shared.k_full[stage]);
      wait_barrier(&shared.v_empty[stage], parity ^ 1);
      arrive_expecting(&shared.v_full[stage], kPageBytes);
      copy_tensor_box(shared.v[stage], values, 0, row, 0, &shared.v_full[stage]);
    }
  }
}

// What the third warpgroup does with quantised pages: copies them and makes them bf16.
template <int kDim, KvDtype kDtype>
struct Widener {
  using Tile = __nv_bfloat16[kDim / kBlockDim][kPageTokens][kBlockDim];

  const PagedAttentionArgs& args;
  const QueryTile& tile;
  QuantisedShared<kDim, kDtype>& shared;

  __device__ __forceinline__ void fetch(void* plane, int page, std::byte* to,
                                        uint64_t* arrived) const {
    constexpr int kBytes = static_cast<int>(kv_block_bytes(kDtype, kDim));
    arrive_expecting(arrived, kBytes);
    copy_bulk(to, kv_block<kDtype>(args.cache, plane, page, tile.kv_head), kBytes, arrived);
  }

  // Tokens from `tokens` on become zeros: what lies there may be NaN.
  __device__ __forceinline__ void widen(const std::byte* block, int tokens, Tile& to) const {
    constexpr int kChunks = kDim / 16;
    constexpr int kKeyStep = kGroupThreads / kChunks;
    static_assert(kKeyStep % 8 == 0);
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int first_key = static_cast<int>(threadIdx.x) / kChunks;
    // Eight threads write to two blocks of rows: in different banks, if those of the second block
    // begin with their other half.
    const bool swapped = chunk / 4 % 2 != 0;
    const int place = chunk % 4 * 2;
    const int first_place = ((place + (swapped ? 1 : 0)) ^ (first_key & 7)) * 8;
    const int second_place = ((place + (swapped ? 0 : 1)) ^ (first_key & 7)) * 8;
#pragma unroll 2
    for (int key = first_key; key < kPageTokens; key += kKeyStep) {
      uint4 first{};
      uint4 second{};
      if (key < tokens) {
        const uint4 raw = *reinterpret_cast<const uint4*>(block + key * kDim + chunk * 16);
        const KvScale<kDtype> scale(stored_scale(block, kDim, key, chunk * 16 / kKvScaleGroup));
        first = widen_kv_to_bf16(swapped ? raw.z : raw.x, swapped ? raw.w : raw.y, scale);
        second = widen_kv_to_bf16(swapped ? raw.x : raw.z, swapped ? raw.y : raw.w, scale);
      }
      *reinterpret_cast<uint4*>(&to[chunk / 4][key][first_place]) = first;
      *reinterpret_cast<uint4*>(&to[chunk / 4][key][second_place]) = second;
    }
  }

  // Afterwards one thread may tell that the tile is full, and may copy over the block.
  __device__ __forceinline__ void finish() const {
    publish_shared();
    sync_threads(kWideners, kGroupThreads);
  }

  __device__ __forceinline__ void run() const {
    const bool leads = threadIdx.x == 0;
    const int count = tile.last_position / kPageTokens + 1;
    const int32_t* const pages = pages_of(args.cache, args.step, tile.lane_start / args.step.width);
    int next_page = 0;
    if (leads) {
      fetch(args.cache.k, pages[0], shared.k_block, &shared.k_arrived);
      fetch(args.cache.v, pages[0], shared.v_block, &shared.v_arrived);
    }
    for (int page = 0; page < count; ++page) {
      const int stage = page % kStages;
      const int parity = page / kStages % 2;
      const int tokens = tile.last_position + 1 - page * kPageTokens;
      const bool more = leads && page + 1 < count;
      if (more) next_page = pages[page + 1];
      wait_barrier(&shared.k_arrived, page % 2);
      wait_barrier(&shared.k_empty[stage], parity ^ 1);
      widen(shared.k_block, tokens, shared.k[stage]);
      finish();
      if (leads) arrive(&shared.k_full[stage]);
      if (more) fetch(args.cache.k, next_page, shared.k_block, &shared.k_arrived);
      wait_barrier(&shared.v_arrived, page % 2);
      wait_barrier(&shared.v_empty[stage], parity ^ 1);
      widen(shared.v_block, tokens, shared.v[stage]);
      finish();
      if (leads) arrive(&shared.v_full[stage]);
      if (more) fetch(args.cache.v, next_page, shared.v_block, &shared.v_arrived);
    }
  }
};

#endif  // CONVOY_HOPPER_CODE

}  // namespace convoy::cuda
