// Prompt-class attention for compute capability 9.0: a block takes 128 rows, 64 for each of two
// warpgroups; a third one has the copy engine bring in keys and values, two pages of each ahead. A
// warpgroup's scores of the next page and its weighted values of this one are computed while it
// turns scores into weights. Tiles that would leave many multiprocessors idle at the end are
// halved: those blocks have one computing warpgroup.
#include "base/check.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_hopper_pages.cuh"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/driver_calls.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.h"

namespace convoy::cuda {
namespace {

// How the grid is cut: blocks below `whole` take a tile each, the others half a tile.
struct TileGrid {
  int tiles_per_head;
  int whole;
  int blocks;  // of the grid
};

#ifdef CONVOY_HOPPER_CODE

constexpr int kBothGroups = 3;  // named barrier of the two computing warpgroups

// A block's part of the grid; later rows have more to read and go first.
__device__ __forceinline__ QueryTile tile_of(const PagedAttentionArgs& args, const TileGrid& grid,
                                             int groups) {
  const int block = static_cast<int>(blockIdx.x);
  const int beyond = block - grid.whole;
  const int index = beyond < 0 ? block : grid.whole + beyond / 2;
  const int heads = args.cache.kv_heads * args.step.lanes;
  const int head = index % heads;
  const int first_row = (grid.tiles_per_head - 1 - index / heads) * kRows +
                        (beyond < 0 ? 0 : (1 - beyond % 2) * kGroupRows);
  return make_tile(args, head / args.cache.kv_heads, head % args.cache.kv_heads, first_row,
                   groups * kGroupRows);
}

// One computing warpgroup's view of its tile.
template <int kDim>
struct Consumer {
  HopperShared<kDim>& shared;
  int groups;  // 1 or 2 that compute
  int group;   // this one's number
  uint64_t q, k, v;

  __device__ Consumer(HopperShared<kDim>& s, int count, int g)
      : shared(s),
        groups(count),
        group(g),
        q(matrix_descriptor(s.q[0][g * kGroupRows], 0)),
        k(matrix_descriptor(s.k[0], 0)),
        v(matrix_descriptor(s.v[0], kPageTokens * kBlockDim * 2)) {}

  __device__ __forceinline__ void load_queries(const PagedAttentionArgs& args,
                                               const QueryTile& tile) {
    constexpr int kChunks = kDim / 8;
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kGroupRows * kChunks;
         i += kGroupThreads) {
      const int row = group * kGroupRows + i / kChunks;
      const int chunk = i % kChunks;
      const bool valid = row < tile.rows;
      const auto* const from = valid ? query_of(args, tile.column_of(row), tile.head_of(row))
                                     : static_cast<const __nv_bfloat16*>(args.q);
      copy_async_16(&shared.q[chunk / 8][row][((chunk ^ row) & 7) * 8],
                    from + (valid ? chunk * 8 : 0), valid);
    }
    commit_copies();
    wait_copies<0>();
    publish_shared();
    sync_threads(1 + group, kGroupThreads);
  }

  __device__ __forceinline__ void start_scores(int page, float (&scores)[8][4]) {
    const int stage = page % kStages;
    wait_barrier(&shared.k_full[stage], page / kStages % 2);
    begin_products();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      constexpr int kStageBytes = kPageTokens * kDim * 2;
      const int block = step / 4;
      const int within = step % 4 * 32;
      product_64x64(scores, advance(q, block * kRows * 128 + within),
                    advance(k, stage * kStageBytes + block * kPageTokens * 128 + within), step > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void start_values(int page, const uint32_t (&weights)[4][4],
                                               float (&out)[kDim / 8][4]) {
    const int stage = page % kStages;
    begin_products();
#pragma unroll
    for (int step = 0; step < kPageTokens / 16; ++step) {
      constexpr int kStageBytes = kPageTokens * kDim * 2;
      add_product(out, weights[step], advance(v, stage * kStageBytes + step * 16 * 128));
    }
    commit_products();
  }

  __device__ __forceinline__ void wait_values(int page) {
    wait_barrier(&shared.v_full[page % kStages], page / kStages % 2);
  }
  __device__ __forceinline__ void release(uint64_t (&empty)[kStages], int page) {
    if (threadIdx.x % 32 == 0) arrive(&empty[page % kStages]);
  }

  // Values beyond the tile's last position become zeros: what lies there may be NaN, and weight 0
  // would not hide it.
  __device__ __forceinline__ void clear_values(int page, int tokens) {
    if (tokens >= kPageTokens) return;
    const int dead = (kPageTokens - tokens) * 8;
    for (int i = static_cast<int>(threadIdx.x) - kGroupThreads; i < dead * (kDim / kBlockDim);
         i += groups * kGroupThreads) {
      auto& row = shared.v[page % kStages][i / dead][tokens + i % dead / 8];
      *reinterpret_cast<uint4*>(&row[i % 8 * 8]) = uint4{};
    }
    publish_shared();
    sync_threads(kBothGroups, groups * kGroupThreads);
  }
};

template <int kEighths>
__device__ __forceinline__ void rescale_rows(const SoftmaxRows& softmax,
                                             float (&out)[kEighths][4]) {
  // Multiplying by 1 changes nothing.
  if (!__any_sync(~0U, softmax.rescale[0] != 1.0F || softmax.rescale[1] != 1.0F)) return;
#pragma unroll
  for (auto& values : out) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= softmax.rescale[i / 2];
  }
}

// kMayHoldNan: values beyond the last token are as they lie in the cache.
template <int kDim, bool kMayHoldNan>
__device__ __forceinline__ void consume(const PagedAttentionArgs& args, const QueryTile& tile,
                                        HopperShared<kDim>& shared, int groups) {
  Consumer<kDim> consumer(shared, groups, static_cast<int>(threadIdx.x) / kGroupThreads - 1);
  consumer.load_queries(args, tile);
  const int first_row = consumer.group * kGroupRows;
  const int row = first_row + static_cast<int>(threadIdx.x / 32 % 4) * 16 +
                  static_cast<int>(threadIdx.x % 32) / 4;
  const int position[2] = {tile.position_of(args, row), tile.position_of(args, row + 8)};
  const int first_position = tile.position_of(args, first_row);
  const int count = tile.last_position / kPageTokens + 1;
  const float scale = score_scale(kDim);
  SoftmaxRows softmax;
  float out[kDim / 8][4];
#pragma unroll
  for (auto& values : out) values[0] = values[1] = values[2] = values[3] = 0.0F;
  float scores[8][4];
  uint32_t weights[4][4];
  const auto weigh = [&](int page) {
    const int last_key[2] = {position[0] - page * kPageTokens, position[1] - page * kPageTokens};
    if (first_position >= page * kPageTokens + kPageTokens - 1) {
      softmax_step<false>(scores, scale, last_key, softmax);
    } else {
      softmax_step<true>(scores, scale, last_key, softmax);
    }
  };
  const auto pack = [&] {
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_weights(scores, step, weights[step]);
  };

  consumer.start_scores(0, scores);
  wait_products<0>();
  consumer.release(shared.k_empty, 0);
  weigh(0);
  pack();
  for (int page = 1; page < count; ++page) {
    consumer.start_scores(page, scores);
    consumer.wait_values(page - 1);
    consumer.start_values(page - 1, weights, out);
    wait_products<1>();
    consumer.release(shared.k_empty, page);
    weigh(page);
    wait_products<0>();
    consumer.release(shared.v_empty, page - 1);
    rescale_rows(softmax, out);
    pack();
  }
  consumer.wait_values(count - 1);
  if constexpr (kMayHoldNan)
    consumer.clear_values(count - 1, tile.last_position + 1 - (count - 1) * kPageTokens);
  consumer.start_values(count - 1, weights, out);
  wait_products<0>();
  store_rows(args, tile, row, out, softmax);
}

#endif  // CONVOY_HOPPER_CODE

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    prompt_attention_hopper(PagedAttentionArgs args, TileGrid grid,
                            const __grid_constant__ CUtensorMap keys,
                            const __grid_constant__ CUtensorMap values) {
#ifdef CONVOY_HOPPER_CODE
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<HopperShared<kDim>*>(memory);
  allow_dependents();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&keys);
    prefetch_tensor_map(&values);
  }
  const int groups = static_cast<int>(blockIdx.x) < grid.whole ? 2 : 1;
  init_barriers<kDim>(shared, groups);
  grid_dependency_wait();
  const QueryTile tile = tile_of(args, grid, groups);
  clear_dead_rows(args, tile, groups * kGroupRows, kThreads);
  if (tile.rows <= 0) return;
  if (threadIdx.x < kGroupThreads) {
    give_registers<24>();
    if (threadIdx.x < 32) produce<kDim>(args, tile, &keys, &values, shared);
  } else {
    take_registers<240>();
    if (static_cast<int>(threadIdx.x) < (1 + groups) * kGroupThreads)
      consume<kDim, true>(args, tile, shared, groups);
  }
#endif
}

template <int kDim, KvDtype kDtype>
__global__ void __launch_bounds__(kThreads, 1)
    quantised_prompt_attention_hopper(PagedAttentionArgs args, TileGrid grid) {
#ifdef CONVOY_HOPPER_CODE
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<QuantisedShared<kDim, kDtype>*>(memory);
  allow_dependents();
  const int groups = static_cast<int>(blockIdx.x) < grid.whole ? 2 : 1;
  if (threadIdx.x == 0) {
    init_barrier(&shared.k_arrived, 1);
    init_barrier(&shared.v_arrived, 1);
  }
  init_barriers<kDim>(shared, groups);
  grid_dependency_wait();
  const QueryTile tile = tile_of(args, grid, groups);
  clear_dead_rows(args, tile, groups * kGroupRows, kThreads);
  if (tile.rows <= 0) return;
  if (threadIdx.x < kGroupThreads) {
    give_registers<40>();
    Widener<kDim, kDtype>{args, tile, shared}.run();
  } else {
    take_registers<232>();
    if (static_cast<int>(threadIdx.x) < (1 + groups) * kGroupThreads)
      consume<kDim, false>(args, tile, shared, groups);
  }
#endif
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  CONVOY_CUDA(cudaGetDevice(&device));
  CONVOY_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// A plane as a tensor [head_dim / 64][rows][64], so that one box is a page's [64, head_dim] of one
// head in the order of the matrix instructions. How many pages there are is the caller's business:
// the tensor's extent is only a limit.
CUtensorMap tensor_map_of(void* plane, int head_dim) {
  CUtensorMap map;
  const auto blocks = static_cast<cuuint64_t>(head_dim / kBlockDim);
  const cuuint64_t extents[3] = {kBlockDim, cuuint64_t{1} << 31, blocks};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_dim) * 2, kBlockDim * 2};
  const cuuint32_t box[3] = {kBlockDim, kPageTokens, static_cast<cuuint32_t>(blocks)};
  const cuuint32_t every[3] = {1, 1, 1};
  CONVOY_CUDA_DRIVER(driver_calls().tensor_map_encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, plane, extents, strides, box, every,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

TileGrid grid_of(const PagedAttentionArgs& args) {
  const int rows = args.step.width * (args.heads / args.cache.kv_heads);
  TileGrid grid;
  grid.tiles_per_head = (rows + kRows - 1) / kRows;
  const int tiles = grid.tiles_per_head * args.cache.kv_heads * args.step.lanes;
  // A multiprocessor holds one block, and half a tile takes little more than half the time.
  const int last_wave = tiles % attribute(cudaDevAttrMultiProcessorCount);
  const int halved = 2 * last_wave <= attribute(cudaDevAttrMultiProcessorCount) ? last_wave : 0;
  grid.whole = tiles - halved;
  grid.blocks = tiles + halved;
  return grid;
}

template <typename... Parameters, typename... More>
void launch_hopper(void (*kernel)(Parameters...), size_t shared_bytes, cudaStream_t stream,
                   const PagedAttentionArgs& args, const More&... more) {
  const TileGrid grid = grid_of(args);
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(grid.blocks)),
          .block = dim3(kThreads),
          .shared_bytes = shared_bytes},
         stream, args, grid, more...);
}

template <int kDim>
void attend(cudaStream_t stream, const PagedAttentionArgs& args) {
  with_kv_dtype(args.cache.dtype, [&](auto dtype) {
    if constexpr (dtype == KvDtype::bf16) {
      constexpr size_t kBytes = sizeof(HopperShared<kDim>);
      allow_shared_bytes<prompt_attention_hopper<kDim>>(kBytes);
      launch_hopper(prompt_attention_hopper<kDim>, kBytes, stream, args,
                    tensor_map_of(args.cache.k, kDim), tensor_map_of(args.cache.v, kDim));
    } else {
      constexpr size_t kBytes = sizeof(QuantisedShared<kDim, dtype>);
      allow_shared_bytes<quantised_prompt_attention_hopper<kDim, dtype>>(kBytes);
      launch_hopper(quantised_prompt_attention_hopper<kDim, dtype>, kBytes, stream, args);
    }
  });
}

}  // namespace

bool has_hopper_attention(const PagedAttentionArgs& args) {
  if (args.cache.head_dim != 128 && args.cache.head_dim != 256) return false;
  // Elsewhere, and in code of an older architecture, the kernels are empty.
  static const bool kCompiled = code_version(prompt_attention_hopper<128>) == 90 &&
                                attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                                shared_bytes_per_block() >= sizeof(HopperShared<256>);
  return kCompiled;
}

void attend_prompt_hopper(cudaStream_t stream, const PagedAttentionArgs& args) {
  if (args.cache.head_dim == 128) {
    attend<128>(stream, args);
  } else {
    CONVOY_CHECK_OP(args.cache.head_dim, ==, 256);
    attend<256>(stream, args);
  }
}

}  // namespace convoy::cuda
