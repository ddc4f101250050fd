// Pass 1 of gdn_chunk: what depends on one chunk alone (gdn_chunk.cuh).
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/gdn_chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

using cuda::ChunkPart;
using cuda::kChunk;
using cuda::kChunkDim;

// A block has one chunk of one key head and a group of four warps for each value head of it.
constexpr int kGroupThreads = 128;
constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kMaxGroups = 3;  // as many as fit 99 KiB of shared memory; more are several blocks
constexpr int kBlock = 16;     // rows and columns of a tensor-core tile and of a diagonal block
constexpr int kTiles = 10;     // of them in a lower triangle
// Rows are padded by 16 bytes, so that the eight rows of a matrix load lie in different banks.
constexpr int kKeyStride = kChunkDim + 8;
constexpr int kMatrixStride = kChunk + 4;

struct GroupShared {
  alignas(16) float matrix[kChunk * kMatrixStride];  // A, then T in its place
  float log_decay[kChunk];                           // c
  float beta[kChunk];
};
// Unscaled products of the chunk's queries (0) and keys (1) with its keys; lower triangle only.
struct Products {
  float of[2][kChunk * kMatrixStride];
};
struct Keys {
  __nv_bfloat16 rows[2][kChunk * kKeyStride];  // queries, keys
};
struct PrepareShared {
  union {
    alignas(16) Keys keys;
    Products products;  // in their place
  };
  float scale[2][kChunk];  // to unit length: queries (with key_dim^-0.5), keys
  GroupShared groups[kMaxGroups];
};

// A thread's place in its group.
__device__ __forceinline__ int group_thread() {
  return static_cast<int>(threadIdx.x) % kGroupThreads;
}
__device__ __forceinline__ void sync_group() {
  cuda::sync_threads(1 + static_cast<int>(threadIdx.x) / kGroupThreads, kGroupThreads);
}

// Threads 0..63 have a column each; the sum of g runs over pairs of columns, then over a warp.
__device__ __forceinline__ void load_gates(const GdnArgs& args, ptrdiff_t column, int head,
                                           int live, GroupShared& s) {
  const int i = group_thread();
  if (i < kChunk) {
    const ptrdiff_t at = (column + i) * args.value_heads + head;
    s.beta[i] = i < live ? args.beta[at] : 0.0F;
    s.log_decay[i] = i < live ? args.g[at] : 0.0F;
  }
  sync_group();
  if (i >= 32) return;
  const float even = s.log_decay[2 * i], odd = s.log_decay[2 * i + 1];
  float sum = even + odd;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(0xFFFFFFFFU, sum, distance);
    if (i >= distance) sum += before;
  }
  const float before = __shfl_up_sync(0xFFFFFFFFU, sum, 1);
  s.log_decay[2 * i] = (i == 0 ? 0.0F : before) + even;
  s.log_decay[2 * i + 1] = sum;
}

// A thread has one row of the queries or of the keys.
__device__ __forceinline__ void scale_rows(PrepareShared& s) {
  const int row = static_cast<int>(threadIdx.x) % kChunk;
  const bool keys = threadIdx.x >= kChunk;
  if (threadIdx.x >= 2 * kChunk) return;
  const __nv_bfloat16* const values = s.keys.rows[keys ? 1 : 0] + row * kKeyStride;
  float squares[cuda::kVectorValues] = {};
#pragma unroll 4
  for (int piece = 0; piece < kChunkDim / cuda::kVectorValues; ++piece) {
    float x[cuda::kVectorValues];
    cuda::load_vector<true>(values, piece, kChunkDim, x);
#pragma unroll
    for (int i = 0; i < cuda::kVectorValues; ++i) squares[i] = fmaf(x[i], x[i], squares[i]);
  }
  const float sum = ((squares[0] + squares[1]) + (squares[2] + squares[3])) +
                    ((squares[4] + squares[5]) + (squares[6] + squares[7]));
  const float scale = rsqrtf(sum + cuda::kUnitEps);
  s.scale[keys ? 1 : 0][row] = keys ? scale : scale * rsqrtf(static_cast<float>(kChunkDim));
}

// Where a fragment of a triangle (gdn_chunk.cuh) lies in it.
struct FragmentPlace {
  int row, column;
};
__device__ __forceinline__ FragmentPlace fragment_place(int fragment) {
  const int pair = fragment < 2 ? 0 : fragment < 6 ? 1 : fragment < 12 ? 2 : 3;  // of eight rows
  const int in_pair = fragment - pair * (pair + 1);
  return {8 * (2 * pair + in_pair / (pair + 1)), 16 * (in_pair % (pair + 1))};
}
// The row of a lower triangle's tile, in tiles.
__device__ __forceinline__ int tile_row(int tile) {
  return tile < 1 ? 0 : tile < 3 ? 1 : tile < 6 ? 2 : 3;
}

// The products of rows 16 i.. with keys 16 j..
__device__ __forceinline__ void multiply_tile(const __nv_bfloat16* rows, const __nv_bfloat16* keys,
                                              int i, int j, float (&d)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const __nv_bfloat16* const a_row = rows + (i * kBlock + lane % 16) * kKeyStride + lane / 16 * 8;
  const __nv_bfloat16* const b_row =
      keys + (j * kBlock + lane / 16 * 8 + lane % 8) * kKeyStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) d[n][r] = 0;
  }
#pragma unroll
  for (int step = 0; step < kChunkDim / 16; ++step) {
    uint32_t a[4], b[4];
    cuda::load_matrices(a, a_row + 16 * step);
    cuda::load_matrices(b, b_row + 16 * step);
    cuda::mma_bf16(d[0], a, {b[0], b[1]});
    cuda::mma_bf16(d[1], a, {b[2], b[3]});
  }
}

// All warps of the block share the 20 tiles of both triangles.
__device__ __forceinline__ void multiply_keys(PrepareShared& s) {
  constexpr int kMostTiles = 2 * kTiles / kGroupWarps;  // of a warp
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float d[kMostTiles][2][4];
#pragma unroll
  for (int n = 0; n < kMostTiles; ++n) {
    const int tile = (warp + n * warps) % kTiles, which = (warp + n * warps) / kTiles;
    if (which >= 2) break;
    const int i = tile_row(tile);
    multiply_tile(s.keys.rows[which], s.keys.rows[1], i, tile - i * (i + 1) / 2, d[n]);
  }
  __syncthreads();  // nobody needs the rows any more
#pragma unroll
  for (int n = 0; n < kMostTiles; ++n) {
    const int tile = (warp + n * warps) % kTiles, which = (warp + n * warps) / kTiles;
    if (which >= 2) break;
    const int i = tile_row(tile), j = tile - i * (i + 1) / 2;
    float* const to =
        s.products.of[which] + (i * kBlock + lane / 4) * kMatrixStride + j * kBlock + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 4; ++half) {  // rows and columns 0..7 and 8..15
      *reinterpret_cast<float2*>(to + half / 2 * 8 * kMatrixStride + half % 2 * 8) =
          make_float2(d[n][half % 2][half / 2 * 2], d[n][half % 2][half / 2 * 2 + 1]);
    }
  }
  __syncthreads();
}

// A to the group's matrix, P to the part.
__device__ __forceinline__ void scale_products(const PrepareShared& s, GroupShared& group,
                                               ChunkPart& part) {
  const int warp = group_thread() / 32, lane = group_thread() % 32;
#pragma unroll 1
  for (int fragment = warp; fragment < cuda::kTriangleFragments; fragment += kGroupWarps) {
    const FragmentPlace place = fragment_place(fragment);
    const int i = place.row + lane / 4;
    const float c = group.log_decay[i], q_scale = s.scale[0][i];
    const float k_scale = s.scale[1][i] * group.beta[i];
    uint4 terms;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = place.column + lane % 4 * 2 + 8 * half, at = i * kMatrixStride + j;
      const float2 q = *reinterpret_cast<const float2*>(s.products.of[0] + at);
      const float2 k = *reinterpret_cast<const float2*>(s.products.of[1] + at);
      const float2 other = *reinterpret_cast<const float2*>(group.log_decay + j);
      const float2 scale = *reinterpret_cast<const float2*>(s.scale[1] + j);
      // Above the diagonal the exponential might overflow: it is masked before. So are products
      // there, which nobody has computed.
      const float first = __expf(i >= j ? c - other.x : -INFINITY) * scale.x;
      const float second = __expf(i > j ? c - other.y : -INFINITY) * scale.y;
      cuda::split_bf16(i >= j ? q_scale * first * q.x : 0.0F, i > j ? q_scale * second * q.y : 0.0F,
                       half == 0 ? terms.x : terms.y, half == 0 ? terms.z : terms.w);
      *reinterpret_cast<float2*>(group.matrix + at) = make_float2(
          i > j ? k_scale * first * k.x : 0.0F, i > j + 1 ? k_scale * second * k.y : 0.0F);
    }
    part.read.terms[fragment][lane] = terms;
  }
}

// Forward substitution: a thread solves for one column of its warp's diagonal block.
__device__ __forceinline__ void invert_diagonal_blocks(float* matrix) {
  static_assert(kGroupWarps * kBlock == kChunk);
  const int first = group_thread() / 32 * kBlock, column = group_thread() % kBlock;
  float* const block = matrix + first * kMatrixStride + first;
  float x[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
    for (int j = 0; j < i; j += 4) {  // what is read beyond column i is not used
      const float4 a = *reinterpret_cast<const float4*>(block + i * kMatrixStride + j);
      sum = fmaf(-a.x, x[j], sum);
      if (j + 1 < i) sum = fmaf(-a.y, x[j + 1], sum);
      if (j + 2 < i) sum = fmaf(-a.z, x[j + 2], sum);
      if (j + 3 < i) sum = fmaf(-a.w, x[j + 3], sum);
    }
    x[i] = sum;
  }
  __syncwarp();
  if (group_thread() % 32 >= kBlock) return;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) block[i * kMatrixStride + column] = x[i];
}

// Columns 8n.. (n < kTiles) of 16 rows of a product of two [kSize, kSize] blocks, in two bf16 terms
// each.
template <int kSize, int kColumnTiles>
__device__ __forceinline__ void multiply_blocks(const float* a, const float* b,
                                                float (&d)[kColumnTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), group = lane / 4, pair = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (float& value : d[n]) value = 0;
  }
#pragma unroll
  for (int step = 0; step < kSize / 16; ++step) {
    uint32_t a_high[4], a_low[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float2 values = *reinterpret_cast<const float2*>(
          a + (group + r % 2 * 8) * kMatrixStride + 16 * step + pair + r / 2 * 8);
      cuda::split_bf16(values.x, values.y, a_high[r], a_low[r]);
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      uint32_t b_high[2], b_low[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const from = b + (16 * step + pair + r * 8) * kMatrixStride + 8 * n + group;
        cuda::split_bf16(from[0], from[kMatrixStride], b_high[r], b_low[r]);
      }
      cuda::mma_bf16(d[n], a_high, b_high);
      cuda::mma_bf16(d[n], a_low, b_high);
      cuda::mma_bf16(d[n], a_high, b_low);
    }
  }
}

// From the inverses of neighbouring diagonal blocks of kSize that of the two together: the block
// below the diagonal becomes -T_11 (A_10 T_00).
template <int kSize>
__device__ __forceinline__ void join_blocks(float* matrix) {
  // A warp has kColumnTiles neighbouring tiles of 16 by 8.
  constexpr int kTilesOfRow = kSize / 8, kTilesOfBlock = kSize / 16 * kTilesOfRow;
  constexpr int kColumnTiles = kChunk / (2 * kSize) * kTilesOfBlock / kGroupWarps;
  static_assert(kTilesOfRow % kColumnTiles == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile = group_thread() / 32 * kColumnTiles, of_block = tile % kTilesOfBlock;
  const int first = tile / kTilesOfBlock * 2 * kSize;
  float* const row = matrix + (first + kSize + of_block / kTilesOfRow * 16) * kMatrixStride;
  const int column = first + of_block % kTilesOfRow * 8;
#pragma unroll
  for (int product = 0; product < 2; ++product) {
    const int inner = first + product * kSize;
    const float sign = product == 0 ? 1.0F : -1.0F;
    float d[kColumnTiles][4];
    multiply_blocks<kSize>(row + inner, matrix + inner * kMatrixStride + column, d);
    sync_group();
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(row + (lane / 4 + 8 * half) * kMatrixStride + column + 8 * n +
                                   lane % 4 * 2) =
            make_float2(sign * d[n][2 * half], sign * d[n][2 * half + 1]);
      }
    }
    sync_group();
  }
}

__device__ __forceinline__ void store_solve(const float* matrix, ChunkPart& part) {
  const int warp = group_thread() / 32, lane = group_thread() % 32;
  for (int fragment = warp; fragment < cuda::kTriangleFragments; fragment += kGroupWarps) {
    const FragmentPlace place = fragment_place(fragment);
    const float* const from =
        matrix + (place.row + lane / 4) * kMatrixStride + place.column + lane % 4 * 2;
    uint4 terms;
    cuda::split_bf16(from[0], from[1], terms.x, terms.z);
    cuda::split_bf16(from[8], from[9], terms.y, terms.w);
    part.solve.terms[fragment][lane] = terms;
  }
}

__device__ __forceinline__ void store_factors(const PrepareShared& s, const GroupShared& group,
                                              ChunkPart& part) {
  const int i = group_thread();
  if (i >= kChunk) return;
  const float last = group.log_decay[kChunk - 1];
  const float from_start = __expf(group.log_decay[i]);
  const float key_scale = s.scale[1][i];
  part.factors[i] =
      make_float4(group.beta[i], group.beta[i] * from_start * key_scale, from_start * s.scale[0][i],
                  __expf(last - group.log_decay[i]) * key_scale);
  if (i == 0) part.decay = __expf(last);
}

__device__ __forceinline__ void zero_dead_columns(const GdnArgs& args, ptrdiff_t column, int head,
                                                  int live, int columns) {
  auto* const out = static_cast<__nv_bfloat16*>(args.out);
  const int pieces = args.value_dim / cuda::kVectorValues;
  for (int i = group_thread(); i < (columns - live) * pieces; i += kGroupThreads) {
    const ptrdiff_t row = (column + live + i / pieces) * args.value_heads + head;
    *reinterpret_cast<uint4*>(out + row * args.value_dim + i % pieces * cuda::kVectorValues) =
        make_uint4(0, 0, 0, 0);
  }
}

// Grid: (chunks, blocks of value heads, lanes); `blocks` of them share a key head.
__global__ void __launch_bounds__(kGroupThreads* kMaxGroups)
    gdn_chunk_prepare_kernel(const GdnArgs args, int blocks) {
  extern __shared__ __align__(16) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int chunk = static_cast<int>(blockIdx.x), lane = static_cast<int>(blockIdx.z);
  const int threads = static_cast<int>(blockDim.x), groups = threads / kGroupThreads;
  const int key_head = static_cast<int>(blockIdx.y) / blocks;
  const int ratio = args.value_heads / args.key_heads;
  const int of_key_head = static_cast<int>(blockIdx.y) % blocks * groups +
                          static_cast<int>(threadIdx.x) / kGroupThreads;
  const bool working = of_key_head < ratio;
  const int head = key_head * ratio + of_key_head;
  const int width = args.step.width;
  const ptrdiff_t first_column = static_cast<ptrdiff_t>(lane) * width;
  const ptrdiff_t column = first_column + chunk * kChunk;
  const int of_lane = cuda::live_columns(args.step.control[first_column], width);
  const int live = max(0, min(kChunk, of_lane - chunk * kChunk));
  if (working) zero_dead_columns(args, column, head, live, min(kChunk, width - chunk * kChunk));
  if (live == 0) return;

  const ptrdiff_t keys = ptrdiff_t{args.key_heads} * kChunkDim;
  const ptrdiff_t stride = 2 * keys + ptrdiff_t{args.value_heads} * args.value_dim;
  const auto* const q = static_cast<const __nv_bfloat16*>(args.qkv) + column * stride +
                        ptrdiff_t{key_head} * kChunkDim;
  cuda::copy_rows<kChunkDim, kKeyStride>(s.keys.rows[0], q, stride, live, threads, threadIdx.x);
  cuda::copy_rows<kChunkDim, kKeyStride>(s.keys.rows[1], q + keys, stride, live, threads,
                                         threadIdx.x);
  cuda::commit_copies();
  GroupShared& group = s.groups[threadIdx.x / kGroupThreads];
  if (working) {
    load_gates(args, column, head, live, group);
    for (int i = group_thread(); i < kChunk * kMatrixStride; i += kGroupThreads)
      group.matrix[i] = 0;  // joining reads zeros above the diagonal
  }
  cuda::wait_copies<0>();
  __syncthreads();
  scale_rows(s);
  multiply_keys(s);
  if (!working) return;

  ChunkPart& part = *cuda::chunk_part(args, lane, chunk, head);
  scale_products(s, group, part);
  sync_group();
  invert_diagonal_blocks(group.matrix);
  sync_group();
  join_blocks<kBlock>(group.matrix);
  join_blocks<2 * kBlock>(group.matrix);
  store_solve(group.matrix, part);
  store_factors(s, group, part);
}

}  // namespace

void cuda::prepare_chunks(cudaStream_t stream, const GdnArgs& args) {
  allow_shared_bytes<gdn_chunk_prepare_kernel>(sizeof(PrepareShared));
  const int ratio = args.value_heads / args.key_heads;
  const int blocks = (ratio + kMaxGroups - 1) / kMaxGroups;
  const int groups = (ratio + blocks - 1) / blocks;
  const dim3 grid(static_cast<unsigned>((args.step.width + kChunk - 1) / kChunk),
                  static_cast<unsigned>(args.key_heads * blocks),
                  static_cast<unsigned>(args.step.lanes));
  const size_t unused = static_cast<size_t>(kMaxGroups - groups) * sizeof(GroupShared);
  launch(gdn_chunk_prepare_kernel,
         {.grid = grid,
          .block = dim3(static_cast<unsigned>(groups * kGroupThreads)),
          .shared_bytes = sizeof(PrepareShared) - unused},
         stream, args, blocks);
}

}  // namespace convoy
