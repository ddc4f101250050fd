// The work list of generated-class attention and how a block gets its share of it into shared
// memory (attention_decode.cu computes with it).
//
// An item is one split of one KV head and up to Shape::kRows query rows that read it. Blocks are as
// many as the card holds and share the items out among themselves, so that neither the lanes'
// lengths nor the longest possible context decides how many blocks have work. Which block computes
// an item changes nothing. A block's items are one stream of tiles (a page's keys or values) that
// arrive in a ring of stages: while a tile is used, the next ones, which may be the next item's,
// are on their way.
//
// At short contexts the time goes into fetching instructions, which run once: code is kept small
// before anything else.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantised_tiles.cuh"
#include "kernels/ops/scratch.h"

namespace convoy::cuda {

inline constexpr int kDecodeWarps = 8;
inline constexpr int kDecodeThreads = 32 * kDecodeWarps;
inline constexpr int kSplitPages = kAttentionSplitTokens / kPageTokens;
/// Keys of one column of matrix products; the order of sums over keys is defined in terms of them.
inline constexpr int kKeyGroups = kPageTokens / 8;
/// Rows of queries and of weights are padded so that eight of them lie in different banks.
inline constexpr int kRowStride = std::max(kMaxAttentionDim, kAttentionSplitTokens) + 8;

/// Rows of an item are kTiles tiles of 16. kExact: heads have kDim values; else they have fewer and
/// are filled up with zeros.
template <int kDim_, bool kExact_, int kTiles_, int kStages_, KvDtype kDtype_ = KvDtype::bf16>
struct DecodeShape {
  static constexpr int kDim = kDim_;
  static constexpr bool kExact = kExact_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kStages = kStages_;
  static constexpr KvDtype kDtype = kDtype_;
  static constexpr bool kQuantised = kDtype != KvDtype::bf16;
  /// Blocks that should fit on a multiprocessor. Quantised: while the warps of one make bf16 of
  /// what they read, the other's multiply; more rows would not leave the registers for it.
  static constexpr int kBlocks = kQuantised && kTiles == 1 ? 2 : 1;
  static constexpr int kRows = 16 * kTiles;
  /// Items whose rows are in shared memory at once: every item is two tiles or more, and tiles are
  /// loaded kStages - 1 ahead.
  static constexpr int kBuffers = kStages / 2 + 1;
  /// A warp scores kWarpTiles tiles of rows against kWarpKeys groups of eight keys ...
  static constexpr int kWarpKeys = kTiles > 2 ? 2 : 1;
  static constexpr int kWarpTiles = kTiles / kWarpKeys;
  /// ... and computes kSlice values of all rows.
  static constexpr int kSlice = kDim / kDecodeWarps < 16 ? 16 : kDim / kDecodeWarps;
  /// 16-byte chunks of a row of bf16, and how far apart the rows are whose chunks one thread
  /// copies.
  static constexpr int kChunks = kDim / 8;
  static constexpr int kKeyStep = kDecodeThreads / kChunks;
  static_assert(kKeyStep % 8 == 0);
  using Tile = std::conditional_t<kQuantised, QuantisedTile<kDim, kDtype>,
                                  __nv_bfloat16[kPageTokens * kDim]>;
};

template <typename Shape>
struct DecodeShared {
  typename Shape::Tile tiles[Shape::kStages];
  /// An item's queries, then its weights.
  __nv_bfloat16 rows[Shape::kBuffers][Shape::kRows * kRowStride];
  float maximum[kKeyGroups][Shape::kRows];
  float sum[kKeyGroups][Shape::kRows];
  int last_key[Shape::kBuffers][Shape::kRows];  ///< of the split that a row reads; negative: none
  int index[Shape::kBuffers][Shape::kRows];     ///< of the row's partial result
  int live_rows[Shape::kBuffers];
  int pages[Shape::kBuffers];
};

/// 16-byte chunk `chunk` of a key or value of a tile: chunks are permuted so that eight
/// neighbouring keys' equal chunks lie in different banks.
template <typename Shape>
__device__ __forceinline__ const __nv_bfloat16* chunk_at(const __nv_bfloat16* tile, int key,
                                                         int chunk) {
  return tile + key * Shape::kDim + (chunk ^ (key & 7)) * 8;
}

/// n / divisor in one multiplication, for n * divisor < 2^32.
struct Divisor {
  unsigned divisor;
  unsigned factor;  // ceil(2^32 / divisor); not used for 1

  explicit Divisor(int d)
      : divisor(static_cast<unsigned>(d)),
        factor(static_cast<unsigned>(((uint64_t{1} << 32) + divisor - 1) / divisor)) {}
  __device__ __forceinline__ int divide(int n) const {
    return divisor == 1 ? n : static_cast<int>(__umulhi(static_cast<unsigned>(n), factor));
  }
};

/// One launch.
struct DecodeWork {
  GeneratedPass pass;
  int group_heads;  ///< query heads per KV head
  Divisor group, kv_heads;

  explicit DecodeWork(const GeneratedPass& p)
      : pass(p),
        group_heads(p.args.heads / p.args.cache.kv_heads),
        group(group_heads),
        kv_heads(p.args.cache.kv_heads) {}

  template <typename Shape>
  __device__ __forceinline__ int head_dim() const {
    return Shape::kExact ? Shape::kDim : pass.args.cache.head_dim;
  }
};

/// What every warp knows of the step: its thread l holds lane l's part of the list of items. All of
/// it is read past L1, because the first reading may come before earlier kernels are done.
struct DecodeLane {
  int live = 0;   ///< columns
  int last = -1;  ///< position
  int splits = 0;
  int first_item = 0;
  int items = 0;
  int kv_row = 0;

  template <typename Shape>
  __device__ __forceinline__ void read(const DecodeWork& work) {
    const StepView& step = work.pass.args.step;
    const int thread = static_cast<int>(threadIdx.x % 32);
    items = 0;
    if (thread < step.lanes) {
      const ControlRow* const row = step.control + thread * step.width;
      live = max(0, min(__ldcg(&row->valid_columns) - work.pass.columns_before, step.width));
      last = __ldcg(&row->cache_position);
      kv_row = __ldcg(&row->kv_row);
      if (live > 1) last = __ldcg(&row[live - 1].cache_position);
      splits = attention_splits(last + 1);
      items = splits * work.pass.args.cache.kv_heads *
              ((live * work.group_heads + Shape::kRows - 1) / Shape::kRows);
    }
    int end = items;
#pragma unroll
    for (int distance = 1; distance < kMaxLanes; distance *= 2) {
      const int before = __shfl_up_sync(~0U, end, distance);
      if (thread >= distance) end += before;
    }
    first_item = end - items;
  }

  /// Items of all lanes together.
  __device__ __forceinline__ int count() const {
    return __shfl_sync(~0U, first_item + items, kMaxLanes - 1);
  }
};

struct DecodeItem {
  int lane_start = 0;  ///< the lane's first column
  int kv_head = 0;
  int first_row = 0;
  int rows = 0;
  int split = 0;
  int tokens = 0;  ///< of the split, up to the lane's last
  int pages = 0;
  int32_t page[kSplitPages] = {};

  __device__ __forceinline__ int32_t page_id(int block) const {
    int32_t id = page[0];
#pragma unroll
    for (int i = 1; i < kSplitPages; ++i) id = block == i ? page[i] : id;
    return id;
  }

  /// Item `index` of the list, for a whole warp.
  template <typename Shape>
  __device__ __forceinline__ void find(const DecodeWork& work, const DecodeLane& lane, int index) {
    const KvPlanes& cache = work.pass.args.cache;
    const StepView& step = work.pass.args.step;
    const bool begun = static_cast<int>(threadIdx.x % 32) < step.lanes && lane.first_item <= index;
    const int owner = __popc(__ballot_sync(~0U, begun)) - 1;
    index -= __shfl_sync(~0U, lane.first_item, owner);
    lane_start = owner * step.width;
    rows = __shfl_sync(~0U, lane.live, owner) * work.group_heads;
    first_row = 0;
    if (rows > Shape::kRows) {
      const int row_blocks = (rows + Shape::kRows - 1) / Shape::kRows;
      first_row = index % row_blocks * Shape::kRows;
      rows = min(Shape::kRows, rows - first_row);
      index /= row_blocks;
    }
    const int from_last = work.kv_heads.divide(index);
    kv_head = index - from_last * cache.kv_heads;
    // Long splits come first: the short ones fill the gaps at the end.
    split = __shfl_sync(~0U, lane.splits, owner) - 1 - from_last;
    const int begin = attention_split_begin(split);
    const int last = __shfl_sync(~0U, lane.last, owner);
    tokens = min(last + 1, attention_split_begin(split + 1)) - begin;
    pages = (tokens + kPageTokens - 1) / kPageTokens;
    const int32_t* const ids =
        cache.block_tables +
        static_cast<ptrdiff_t>(__shfl_sync(~0U, lane.kv_row, owner)) * cache.max_pages_per_row +
        begin / kPageTokens;
#pragma unroll
    for (int i = 0; i < kSplitPages; ++i) page[i] = i < pages ? __ldcg(&ids[i]) : 0;
  }

  /// Has a page's keys and values brought to L2.
  template <typename Shape>
  __device__ __forceinline__ void prefetch(const DecodeWork& work) const {
#if __CUDA_ARCH__ >= 900
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= 2 * pages) return;
    const KvPlanes& cache = work.pass.args.cache;
    const std::byte* const from = kv_block<Shape::kDtype>(
        cache, thread % 2 == 0 ? cache.k : cache.v, page_id(thread / 2), kv_head);
    const int bytes = static_cast<int>(kv_block_bytes(Shape::kDtype, work.head_dim<Shape>()));
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
  }
};

/// Brings in the tiles of a block's items, one per call.
template <typename Shape>
struct DecodeLoader {
  const DecodeWork& work;
  DecodeShared<Shape>& shared;
  DecodeLane lane;
  int items = 0;
  int index = 0;  // of `item` in the list
  int tile = 0;   // of the item: its pages' keys, then their values
  int stage = 0;
  int buffer = 0;
  DecodeItem item;
  DecodeItem next;  // its page ids arrive while this item's tiles are loaded

  /// Waits for earlier kernels. Before that, it has the block's first keys and values brought to
  /// L2: the control block and block tables may be those of the step before then, and the pages the
  /// wrong ones, which costs a little bandwidth and nothing else.
  __device__ __forceinline__ DecodeLoader(const DecodeWork& w, DecodeShared<Shape>& s)
      : work(w), shared(s), index(static_cast<int>(blockIdx.x)) {
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
      lane.read<Shape>(work);
      items = lane.count();
      if (index < items) item.find<Shape>(work, lane, index);
      if (round > 0) break;
      if (index < items) item.prefetch<Shape>(work);
      grid_dependency_wait();
    }
    look_ahead();
  }

  __device__ __forceinline__ void look_ahead() {
    const int following = index + static_cast<int>(gridDim.x);
    if (following < items) next.find<Shape>(work, lane, following);
  }

  __device__ __forceinline__ void load_next() {
    if (index < items) {
      if (tile == 0) load_rows();
      load_tile();
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      if (++tile == 2 * item.pages) {
        tile = 0;
        buffer = buffer + 1 == Shape::kBuffers ? 0 : buffer + 1;
        index += static_cast<int>(gridDim.x);
        item = next;
        look_ahead();
      }
    }
    commit_copies();
  }

  // The item's queries, which keys each row reads and where its partial result goes.
  __device__ __forceinline__ void load_rows() {
    const PagedAttentionArgs& args = work.pass.args;
    const int thread = static_cast<int>(threadIdx.x);
    // Pairs of values go where quantised keys want them.
    constexpr int kUnit = Shape::kQuantised ? 2 : 8;
    constexpr int kUnits = Shape::kDim / kUnit;
    const int first = thread % kUnits * kUnit;
    const bool inside = Shape::kExact || first < args.cache.head_dim;
    const auto* const q = static_cast<const __nv_bfloat16*>(args.q);
#pragma unroll 1
    for (int row = thread / kUnits; row < Shape::kRows; row += kDecodeThreads / kUnits) {
      const int column = work.group.divide(item.first_row + row);
      const int head = item.first_row + row + (item.kv_head - column) * work.group_heads;
      const bool valid = row < item.rows && inside;
      const ptrdiff_t at =
          (item.lane_start + column) * args.q_column_stride + head * args.q_head_stride + first;
      __nv_bfloat16* const to = &shared.rows[buffer][row * kRowStride];
      if constexpr (Shape::kQuantised) {
        copy_async_4(to + place_of_pair(first), q + (valid ? at : 0), valid);
      } else {
        copy_async_16(to + first, q + (valid ? at : 0), valid);
      }
    }
    if (thread == 0) {
      shared.live_rows[buffer] = item.rows;
      shared.pages[buffer] = item.pages;
    }
    if (thread >= Shape::kRows) return;
    int last_key = -1;
    int at = 0;
    if (thread < item.rows) {
      const int in_lane = work.group.divide(item.first_row + thread);
      const int column = item.lane_start + in_lane;
      const int head = item.first_row + thread + (item.kv_head - in_lane) * work.group_heads;
      const int position = __ldcg(&args.step.control[column].cache_position);
      last_key = min(position - attention_split_begin(item.split), item.tokens - 1);
      at = (column * args.heads + head) * work.pass.splits + item.split;
    }
    shared.last_key[buffer][thread] = last_key;
    shared.index[buffer][thread] = at;
  }

  // Keys and values beyond the lane's last token become zeros: what lies there may be NaN, and
  // weight 0 would not hide it.
  __device__ __forceinline__ void load_tile() {
    const KvPlanes& cache = work.pass.args.cache;
    const bool is_key = tile < item.pages;
    const int page = is_key ? tile : tile - item.pages;
    const int dim = work.head_dim<Shape>();
    if constexpr (Shape::kQuantised) {
      shared.tiles[stage].template copy<kDecodeThreads>(
          kv_block<Shape::kDtype>(cache, is_key ? cache.k : cache.v, item.page_id(page),
                                  item.kv_head),
          dim, item.tokens - page * kPageTokens);
    } else {
      load_bf16_tile(is_key ? cache.k : cache.v, page);
    }
  }

  __device__ __forceinline__ void load_bf16_tile(const void* plane, int page) {
    const KvPlanes& cache = work.pass.args.cache;
    const int dim = work.head_dim<Shape>();
    const int first_key = static_cast<int>(threadIdx.x) / Shape::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % Shape::kChunks;
    const auto* const from = static_cast<const __nv_bfloat16*>(plane) +
                             page_offset(cache, item.page_id(page), item.kv_head) +
                             first_key * dim + chunk * 8;
    // A thread's keys are multiples of 8 apart: their chunks are permuted alike.
    auto* const to =
        const_cast<__nv_bfloat16*>(chunk_at<Shape>(shared.tiles[stage], first_key, chunk));
    const int live = item.tokens - page * kPageTokens - first_key;
    const bool inside = Shape::kExact || chunk * 8 < dim;
#pragma unroll
    for (int key = 0; key < kPageTokens; key += Shape::kKeyStep)
      copy_async_16(to + key * Shape::kDim, from + key * dim, key < live && inside);
  }
};

}  // namespace convoy::cuda
