// Generated-class attention. The keys of a sequence are cut into splits at fixed positions; a block
// takes one split of one KV head and the query rows that read it, and leaves for every row the
// largest score, the sum of the weights and the weighted values. attention_combine.cu adds a row's
// splits.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.h"

namespace convoy::cuda {
namespace {

// Right operands of the products with eight keys.
template <typename Shape>
__device__ __forceinline__ void load_key_operands(const typename Shape::Tile& keys, int first_key,
                                                  int head_dim,
                                                  uint32_t (&b)[Shape::kDim / 32][4]) {
  if constexpr (Shape::kQuantised) {
    load_keys(keys, first_key, head_dim, b);
  } else {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int step = 0; step < Shape::kDim / 32; ++step)
      load_matrices(b[step], chunk_at<Shape>(keys, first_key + lane % 8, 4 * step + lane / 8));
  }
}

// Right operands of the products with a warp's slice of sixteen values.
template <typename Shape>
__device__ __forceinline__ void load_value_operands(const typename Shape::Tile& values,
                                                    int first_key, int first_chunk, int head_dim,
                                                    uint32_t (&b)[Shape::kSlice / 16][4]) {
  if constexpr (Shape::kQuantised) {
    load_values<Shape::kSlice>(values, first_key, first_chunk * 8, head_dim, b);
  } else {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < Shape::kSlice / 16; ++n) {
      load_matrices_transposed(
          b[n], chunk_at<Shape>(values, first_key + lane % 16, first_chunk + 2 * n + lane / 16));
    }
  }
}

// Scores of a warp's rows and keys of one page. Sums over a head's values run in four chains.
template <typename Shape>
__device__ __forceinline__ void score_page(
    const __nv_bfloat16* rows, int live_rows, const typename Shape::Tile& keys, int head_dim,
    float (&scores)[Shape::kWarpTiles][Shape::kWarpKeys][4]) {
  constexpr int kSteps = Shape::kDim / 16;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first_key = warp / Shape::kWarpKeys * Shape::kWarpKeys * 8;
  const int first_tile = warp % Shape::kWarpKeys * Shape::kWarpTiles;
  uint32_t b[Shape::kWarpKeys][kSteps / 2][4];
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys; ++n)
    load_key_operands<Shape>(keys, first_key + 8 * n, head_dim, b[n]);
#pragma unroll
  for (int tile = 0; tile < Shape::kWarpTiles; ++tile) {
    if ((first_tile + tile) * 16 >= live_rows) break;
    float chains[Shape::kWarpKeys][4][4] = {};
    const __nv_bfloat16* const q =
        rows + ((first_tile + tile) * 16 + lane % 16) * kRowStride + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      load_matrices(a, q + 16 * step);
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys; ++n) {
        const uint32_t(&pair)[4] = b[n][step / 2];
        mma_bf16(chains[n][step % 4], a, {pair[step % 2 * 2], pair[step % 2 * 2 + 1]});
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[tile][n][i] =
            (chains[n][0][i] + chains[n][1][i]) + (chains[n][2][i] + chains[n][3][i]);
      }
    }
  }
}

// A warp's scores of a whole split.
template <typename Shape>
struct SplitScores {
  using Page = float[Shape::kWarpTiles][Shape::kWarpKeys][4];
  Page values[kSplitPages];

  __device__ __forceinline__ void keep(int page, const Page& scores) {
#pragma unroll
    for (int p = 0; p < kSplitPages; ++p) {
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles * Shape::kWarpKeys * 4; ++i) {
        float& value = values[p][i / 4 / Shape::kWarpKeys][i / 4 % Shape::kWarpKeys][i % 4];
        if (p == page) value = scores[i / 4 / Shape::kWarpKeys][i / 4 % Shape::kWarpKeys][i % 4];
      }
    }
  }

  // Calls visit(row, key group, values' second and third index, first of the last index's two) for
  // every row and key group that this thread has scores of.
  template <typename Visit>
  __device__ __forceinline__ void for_rows(int live_rows, Visit&& visit) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int first_group = warp / Shape::kWarpKeys * Shape::kWarpKeys;
    const int first_tile = warp % Shape::kWarpKeys * Shape::kWarpTiles;
#pragma unroll
    for (int tile = 0; tile < Shape::kWarpTiles; ++tile) {
      if ((first_tile + tile) * 16 >= live_rows) break;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          visit((first_tile + tile) * 16 + lane / 4 + 8 * r, first_group + n, tile, n, 2 * r);
      }
    }
  }

  // The largest score of every row and key group. Keys that a row may not read get -inf.
  __device__ __forceinline__ void find_largest(int live_rows, int pages, const int* last_keys,
                                               DecodeShared<Shape>& shared) {
    for_rows(live_rows, [&](int row, int group, int tile, int n, int at) {
      const int last_key = last_keys[row] - 8 * group - 2 * static_cast<int>(threadIdx.x % 4);
      float largest = -INFINITY;
#pragma unroll
      for (int page = 0; page < kSplitPages; ++page) {
        if (page >= pages) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = values[page][tile][n][at + i];
          if (kPageTokens * page + i > last_key) score = -INFINITY;
          largest = fmaxf(largest, score);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
      if (threadIdx.x % 4 == 0) shared.maximum[group][row] = largest;
    });
  }

  // Scores become weights in shared memory, where the queries were.
  __device__ __forceinline__ void weigh(int live_rows, int pages, float scale,
                                        __nv_bfloat16* weights, DecodeShared<Shape>& shared) {
    for_rows(live_rows, [&](int row, int group, int tile, int n, int at) {
      float largest = shared.maximum[0][row];
#pragma unroll
      for (int g = 1; g < kKeyGroups; ++g) largest = fmaxf(largest, shared.maximum[g][row]);
      // Rows that may read nothing of this split: -inf - -inf would be NaN.
      const float base = largest == -INFINITY ? 0.0F : largest * scale;
      __nv_bfloat16* const to =
          weights + row * kRowStride + 8 * group + 2 * static_cast<int>(threadIdx.x % 4);
      float sum = 0.0F;
#pragma unroll
      for (int page = 0; page < kSplitPages; ++page) {
        if (page >= pages) break;
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weight[i] = exp2_fast(fmaf(values[page][tile][n][at + i], scale, -base));
          sum += weight[i];
        }
        *reinterpret_cast<uint32_t*>(to + kPageTokens * page) = pack_bf16(weight[0], weight[1]);
      }
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      if (threadIdx.x % 4 == 0) shared.sum[group][row] = sum;
    });
  }
};

// Adds a page's weighted values to a warp's slice of all rows.
template <typename Shape>
__device__ __forceinline__ void add_page(const __nv_bfloat16* weights, int live_rows,
                                         const typename Shape::Tile& values, int head_dim,
                                         float (&out)[Shape::kTiles][Shape::kSlice / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_chunk = static_cast<int>(threadIdx.x / 32) * (Shape::kSlice / 8);
  if (first_chunk * 8 >= Shape::kDim) return;
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step) {
    uint32_t b[Shape::kSlice / 16][4];
    load_value_operands<Shape>(values, 16 * step, first_chunk, head_dim, b);
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      if (tile * 16 >= live_rows) break;
      uint32_t a[4];
      load_matrices(a, weights + (16 * tile + lane % 16) * kRowStride + 16 * step + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < Shape::kSlice / 16; ++n) {
        mma_bf16(out[tile][2 * n], a, {b[n][0], b[n][1]});
        mma_bf16(out[tile][2 * n + 1], a, {b[n][2], b[n][3]});
      }
    }
  }
}

// A thread's part of a row's weighted values. bf16: two of every eight; quantised: neighbours, in
// the order that load_values left the products in.
template <typename Shape>
__device__ __forceinline__ void store_values(const float (&out)[Shape::kSlice / 8][4], int r,
                                             int head_dim, float* row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int slice = static_cast<int>(threadIdx.x / 32) * Shape::kSlice;
  if constexpr (Shape::kQuantised) {
    constexpr int kWord = Shape::kSlice / 8;
    const int first = slice + 2 * kWord * (lane % 4);
    if (first >= head_dim) return;
#pragma unroll
    for (int n = 0; n < kWord; n += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<float2*>(row + first + kWord * i + n) =
            make_float2(out[n][2 * r + i], out[n + 1][2 * r + i]);
      }
    }
  } else {
    const int first = slice + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < Shape::kSlice / 8; ++n) {
      if (first + 8 * n >= head_dim) break;
      *reinterpret_cast<float2*>(row + first + 8 * n) =
          make_float2(out[n][2 * r], out[n][2 * r + 1]);
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void store_item(
    const DecodeWork& work, int buffer, const DecodeShared<Shape>& shared,
    const float (&out)[Shape::kTiles][Shape::kSlice / 8][4]) {
  const int head_dim = work.head_dim<Shape>();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int* const last_key = shared.last_key[buffer];
  const int* const index = shared.index[buffer];
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * tile + lane / 4 + 8 * r;
      if (last_key[row] < 0) continue;
      store_values<Shape>(out[tile], r, head_dim,
                          work.pass.values + static_cast<ptrdiff_t>(index[row]) * head_dim);
    }
  }
  const int row = static_cast<int>(threadIdx.x);
  if (row >= Shape::kRows || last_key[row] < 0) return;
  float largest = shared.maximum[0][row];
  float sum = shared.sum[0][row];
#pragma unroll
  for (int group = 1; group < kKeyGroups; ++group) {
    largest = fmaxf(largest, shared.maximum[group][row]);
    sum += shared.sum[group][row];
  }
  work.pass.sums[index[row]] = make_float2(largest * score_scale(head_dim), sum);
}

// One turn of the loop per tile, and one place that loads: an item's keys are scored, then weighed
// together, then its values are added.
template <typename Shape>
__global__ void __launch_bounds__(kDecodeThreads, Shape::kBlocks)
    generated_attention(const __grid_constant__ DecodeWork work) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<Shape>*>(memory);
  allow_dependents();
  DecodeLoader<Shape> loader(work, shared);
  const int head_dim = work.head_dim<Shape>();
  const float scale = score_scale(head_dim);
  SplitScores<Shape> scores;
  float out[Shape::kTiles][Shape::kSlice / 8][4];
  int item = static_cast<int>(blockIdx.x);
  int stage = 0;
  int buffer = 0;
  int tile = 1 - Shape::kStages;  // of the item; negative: the first tiles are on their way
#pragma unroll 1
  while (item < loader.items) {
    if (tile >= 0) {
      wait_copies<Shape::kStages - 2>();
      __syncthreads();  // the tile has arrived, and every warp is done with the one before it
    }
    loader.load_next();
    if (tile++ < 0) continue;
    const int pages = shared.pages[buffer];
    const int live_rows = shared.live_rows[buffer];
    __nv_bfloat16* const rows = shared.rows[buffer];
    if (tile <= pages) {
      typename SplitScores<Shape>::Page page;
      score_page<Shape>(rows, live_rows, shared.tiles[stage], head_dim, page);
      scores.keep(tile - 1, page);
      if (tile == pages) {
        scores.find_largest(live_rows, pages, shared.last_key[buffer], shared);
        __syncthreads();  // all warps have read the queries
        scores.weigh(live_rows, pages, scale, rows, shared);
#pragma unroll
        for (auto& slices : out) {
#pragma unroll
          for (auto& values : slices) values[0] = values[1] = values[2] = values[3] = 0.0F;
        }
      }
    } else {
      add_page<Shape>(rows + (tile - 1 - pages) * kPageTokens, live_rows, shared.tiles[stage],
                      head_dim, out);
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    if (tile == 2 * pages) {
      store_item<Shape>(work, buffer, shared, out);
      buffer = buffer + 1 == Shape::kBuffers ? 0 : buffer + 1;
      item += static_cast<int>(gridDim.x);
      tile = 0;
    }
  }
}

int rows_of_lane(const GeneratedPass& pass) {
  return pass.args.step.width * (pass.args.heads / pass.args.cache.kv_heads);
}

// Blocks that the card holds at once; 0: not even one. Asked once per kernel.
template <typename Shape>
int resident_blocks() {
  static const int kBlocks = [] {
    int device = 0;
    int multiprocessors = 0;
    CONVOY_CUDA(cudaGetDevice(&device));
    CONVOY_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    constexpr size_t kBytes = sizeof(DecodeShared<Shape>);
    if (kBytes > shared_bytes_per_block()) return 0;
    allow_shared_bytes<generated_attention<Shape>>(kBytes);
    int per_multiprocessor = 0;
    CONVOY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &per_multiprocessor, generated_attention<Shape>, kDecodeThreads, kBytes));
    return per_multiprocessor * multiprocessors;
  }();
  return kBlocks;
}

template <typename Shape>
bool launch_items(cudaStream_t stream, const GeneratedPass& pass) {
  if (resident_blocks<Shape>() == 0) return false;
  const int64_t items = int64_t{pass.splits} * pass.args.step.lanes * pass.args.cache.kv_heads *
                        ((rows_of_lane(pass) + Shape::kRows - 1) / Shape::kRows);
  const int64_t blocks = std::min<int64_t>(items, resident_blocks<Shape>());
  launch(generated_attention<Shape>,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kDecodeThreads),
          .shared_bytes = sizeof(DecodeShared<Shape>)},
         stream, DecodeWork(pass));
  return true;
}

// The largest shape that the rows need and the card has shared memory for.
template <int kDim, KvDtype kDtype>
bool launch_exact(cudaStream_t stream, const GeneratedPass& pass) {
  constexpr bool kQuantised = kDtype != KvDtype::bf16;
  const int rows = rows_of_lane(pass);
  return (rows > 32 &&
          launch_items<DecodeShape<kDim, true, 4, kQuantised ? 4 : 3, kDtype>>(stream, pass)) ||
         (rows > 16 && launch_items<DecodeShape<kDim, true, 2, 4, kDtype>>(stream, pass)) ||
         launch_items<DecodeShape<kDim, true, 1, kQuantised ? 4 : 5, kDtype>>(stream, pass) ||
         launch_items<DecodeShape<kDim, true, 1, 2, kDtype>>(stream, pass);
}

template <KvDtype kDtype>
bool launch_pass(cudaStream_t stream, const GeneratedPass& pass) {
  switch (pass.args.cache.head_dim) {
    case 256:
      return launch_exact<256, kDtype>(stream, pass);
    case 128:
      return launch_exact<128, kDtype>(stream, pass);
    case 64:
      return launch_exact<64, kDtype>(stream, pass);
    default:
      return launch_items<DecodeShape<256, false, 1, 2, kDtype>>(stream, pass);
  }
}

void attend_pass(cudaStream_t stream, const GeneratedPass& pass) {
  bool launched = false;
  with_kv_dtype(pass.args.cache.dtype,
                [&](auto dtype) { launched = launch_pass<dtype>(stream, pass); });
  CONVOY_CHECK(launched, "too little shared memory for attention");
  combine_splits(stream, pass);
}

}  // namespace

void attend_generated(cudaStream_t stream, const PagedAttentionArgs& args) {
  CONVOY_CHECK(args.scratch != nullptr, "generated-class attention needs scratch memory");
  CONVOY_CHECK_OP(args.step.lanes, <=, kMaxLanes);
  const StepView& step = args.step;
  const int width = std::min(step.width, kMaxGeneratedColumns);
  const int lanes = step.width > width ? 1 : kMaxGeneratedColumns / width;
  for (int lane = 0; lane < step.lanes; lane += lanes) {
    for (int column = 0; column < step.width; column += width) {
      const ptrdiff_t first = ptrdiff_t{lane} * step.width + column;
      GeneratedPass pass;
      pass.args = args;
      pass.args.step.control = step.control + first;
      pass.args.step.lanes = std::min(lanes, step.lanes - lane);
      pass.args.step.width = std::min(width, step.width - column);
      pass.args.q = activations_at(args.q, first * args.q_column_stride, 2);
      if (args.gate != nullptr)
        pass.args.gate = activations_at(args.gate, first * args.gate_column_stride, 2);
      pass.args.out = activations_at(args.out, first * args.heads * args.cache.head_dim, 2);
      pass.columns_before = column;
      pass.splits = attention_splits(args.cache.max_pages_per_row * kPageTokens);
      const ptrdiff_t rows = ptrdiff_t{pass.args.step.columns()} * args.heads * pass.splits;
      pass.values = static_cast<float*>(args.scratch);
      pass.sums = reinterpret_cast<float2*>(pass.values + rows * args.cache.head_dim);
      attend_pass(stream, pass);
    }
  }
}

}  // namespace convoy::cuda
