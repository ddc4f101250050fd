// Pass 2 of gdn_chunk: the state's walk over the chunks (gdn_chunk.cuh).
//
// The value columns of a state do not depend on each other, so pairs of warps walk alone with 16 of
// them. Everything is computed transposed (16 value columns by the columns of the chunk): the
// accumulators of one product are then already the A operand of the next.
//   The state's warp keeps S^T [16, 128] in accumulator registers, solves for V' and updates S.
//   The output's warp reads S^T and V' as operands from shared memory, and fetches the next chunk.
// Both run on one of the multiprocessor's tensor cores and fill each other's gaps.
#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/gdn_chunk.cuh"
#include "kernels/cuda/gdn_recurrent.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.h"

namespace convoy {
namespace {

using cuda::ChunkPart;
using cuda::kChunk;
using cuda::kChunkDim;
using cuda::TriangleFragments;

constexpr int kPairs = 4;
constexpr int kHalfThreads = 32 * kPairs;  // the state's warps come first
constexpr int kThreads = 2 * kHalfThreads;
constexpr int kPairValues = 16;
constexpr int kValues = kPairs * kPairValues;  // value columns of a block
constexpr int kKeyTiles = kChunkDim / 8;       // of eight key dimensions
constexpr int kColumnTiles = kChunk / 8;       // of eight columns
constexpr int kKeySteps = kChunkDim / 16;      // of a product over key dimensions
constexpr int kColumnSteps = kChunk / 16;      // of a product over columns
// Rows are padded by 16 bytes, so that the eight rows of a matrix load lie in different banks.
constexpr int kKeyStride = kChunkDim + 8;
constexpr int kValueStride = kValues + 8;

struct alignas(16) ChunkStage {
  __nv_bfloat16 q[kChunk * kKeyStride];
  __nv_bfloat16 k[kChunk * kKeyStride];
  __nv_bfloat16 v[kChunk * kValueStride];  // the chunk's outputs take its place
  ChunkPart part;
};

// What a pair of warps shares: A fragments of S^T, then of V' in the same place.
struct alignas(16) PairShared {
  uint4 high[kKeySteps][32], low[kKeySteps][32];
};

template <int kStages>
struct ChunkShared {
  ChunkStage stages[kStages];
  PairShared pairs[kPairs];
};

// Barriers of one pair of warps, where one signals and the other waits. In turn: the first and the
// second half of S^T are there (output waits), S^T was read (state waits), V' is there (output
// waits).
constexpr int kPairBarriers = 3;
enum PairBarrier { kFirstHalf = 0, kSecondHalf = 1, kStateRead = 2, kDeltaReady = kFirstHalf };
__device__ __forceinline__ int pair_barrier(PairBarrier barrier, int pair) {
  return 1 + pair * kPairBarriers + barrier;
}
__device__ __forceinline__ void wait_for_pair(PairBarrier barrier, int pair) {
  cuda::sync_threads(pair_barrier(barrier, pair), 64);
}
__device__ __forceinline__ void signal_pair(PairBarrier barrier, int pair) {
  asm volatile("bar.arrive %0, 64;" ::"r"(pair_barrier(barrier, pair)) : "memory");
}

// The two bf16 terms of an A fragment.
struct SplitFragment {
  uint32_t high[4], low[4];

  // Columns 0..7 and 8..15 of 16 by 16 values, as accumulators.
  __device__ __forceinline__ void split(const float (&left)[4], const float (&right)[4]) {
    cuda::split_bf16(left[0], left[1], high[0], low[0]);
    cuda::split_bf16(left[2], left[3], high[1], low[1]);
    cuda::split_bf16(right[0], right[1], high[2], low[2]);
    cuda::split_bf16(right[2], right[3], high[3], low[3]);
  }
  __device__ __forceinline__ void load(const PairShared& shared, int step) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint4 h = shared.high[step][lane], l = shared.low[step][lane];
    high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
    low[0] = l.x, low[1] = l.y, low[2] = l.z, low[3] = l.w;
  }
  __device__ __forceinline__ void store(PairShared& shared, int step) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    shared.high[step][lane] = make_uint4(high[0], high[1], high[2], high[3]);
    shared.low[step][lane] = make_uint4(low[0], low[1], low[2], low[3]);
  }
};

template <int kTiles>
using Tiles = float[kTiles][4];

// Step `step` of x += S^T r^T, r being the chunk's keys or queries.
__device__ __forceinline__ void multiply_rows(const SplitFragment& s, const __nv_bfloat16* rows,
                                              int step, Tiles<kColumnTiles>& x) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const __nv_bfloat16* const from =
      rows + (lane / 16 * 8 + lane % 8) * kKeyStride + lane / 8 % 2 * 8 + 16 * step;
  uint32_t r[kColumnTiles / 2][4];
#pragma unroll
  for (int n = 0; n < kColumnTiles / 2; ++n) cuda::load_matrices(r[n], from + n * 16 * kKeyStride);
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
    cuda::mma_bf16(x[n], s.high, {r[n / 2][n % 2 * 2], r[n / 2][n % 2 * 2 + 1]});
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
    cuda::mma_bf16(x[n], s.low, {r[n / 2][n % 2 * 2], r[n / 2][n % 2 * 2 + 1]});
}

// x becomes beta (v - exp(c) S^T k), what T is applied to.
__device__ __forceinline__ void subtract_from_values(const ChunkStage& stage, int value,
                                                     Tiles<kColumnTiles>& x) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const __nv_bfloat16* const v =
      stage.v + (lane / 16 * 8 + lane % 8) * kValueStride + value + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kColumnTiles; n += 2) {
    uint32_t pairs[4];  // [column tile][value half]
    cuda::load_matrices_transposed(pairs, v + n * 8 * kValueStride);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const uint32_t pair = pairs[r / 2];
      const float of_value = __uint_as_float(r % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
      const float4 factor = stage.part.factors[(n + r / 4) * 8 + lane % 4 * 2 + r % 2];
      float& of_state = x[n + r / 4][r % 4];
      of_state = factor.x * of_value - factor.y * of_state;
    }
  }
}

// Step `step` of sum += a M^T for a lower triangular M, whose column tiles before 2 * step are zero
// there.
__device__ __forceinline__ void multiply_triangle(const SplitFragment& a,
                                                  const TriangleFragments& m, int step,
                                                  Tiles<kColumnTiles>& sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint4 b[kColumnTiles];
#pragma unroll
  for (int n = 2 * step; n < kColumnTiles; ++n)
    b[n] = m.terms[cuda::triangle_fragment(n, step)][lane];
#pragma unroll
  for (int n = 2 * step; n < kColumnTiles; ++n) cuda::mma_bf16(sum[n], a.high, {b[n].x, b[n].y});
#pragma unroll
  for (int n = 2 * step; n < kColumnTiles; ++n) cuda::mma_bf16(sum[n], a.low, {b[n].x, b[n].y});
#pragma unroll
  for (int n = 2 * step; n < kColumnTiles; ++n) cuda::mma_bf16(sum[n], a.high, {b[n].z, b[n].w});
}

// Multiplies every column by one of its factors: 2 exp(c) / |q|, 3 exp(c_last - c) / |k|.
template <int kFactor>
__device__ __forceinline__ void scale_columns(const ChunkStage& stage, Tiles<kColumnTiles>& x) {
  const int pair = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 factors = stage.part.factors[n * 8 + pair + c];
      const float factor = kFactor == 2 ? factors.z : factors.w;
      x[n][c] *= factor;
      x[n][2 + c] *= factor;
    }
  }
}

// S = exp(c_last) S + sum_j k_j delta_j^T; delta has the decay to the chunk's end.
__device__ __forceinline__ void update_state(const ChunkStage& stage,
                                             const Tiles<kColumnTiles>& delta,
                                             Tiles<kKeyTiles>& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const __nv_bfloat16* const k = stage.k + lane % 16 * kKeyStride + lane / 16 * 8;
  const float decay = stage.part.decay;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) state[n][r] *= decay;
  }
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    SplitFragment d;
    d.split(delta[2 * step], delta[2 * step + 1]);
    constexpr int kAtOnce = 8;  // independent sums between two of one tile
#pragma unroll
    for (int first = 0; first < kKeyTiles; first += kAtOnce) {
      uint32_t r[kAtOnce / 2][4];
#pragma unroll
      for (int n = 0; n < kAtOnce / 2; ++n)
        cuda::load_matrices_transposed(r[n], k + step * 16 * kKeyStride + first * 8 + n * 16);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        cuda::mma_bf16(state[first + n], d.high, {r[n / 2][n % 2 * 2], r[n / 2][n % 2 * 2 + 1]});
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        cuda::mma_bf16(state[first + n], d.low, {r[n / 2][n % 2 * 2], r[n / 2][n % 2 * 2 + 1]});
    }
  }
}

// The warp's outputs go through its own columns of the values, which nobody else reads, so that
// they leave in rows.
__device__ __forceinline__ void store_outputs(const Tiles<kColumnTiles>& y, ChunkStage& stage,
                                              int value, int live, __nv_bfloat16* out,
                                              ptrdiff_t out_stride) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int column = n * 8 + lane % 4 * 2 + r % 2;
      stage.v[column * kValueStride + value + lane / 4 + r / 2 * 8] = __float2bfloat16_rn(y[n][r]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kChunk / 16; ++i) {
    const int column = i * 16 + lane / 2;
    if (column >= live) continue;
    *reinterpret_cast<uint4*>(out + column * out_stride + lane % 2 * 8) =
        *reinterpret_cast<const uint4*>(stage.v + column * kValueStride + value + lane % 2 * 8);
  }
}

// The state's warp.
__device__ __forceinline__ void walk_state(const ChunkStage& stage, PairShared& shared, int pair,
                                           Tiles<kKeyTiles>& state) {
  Tiles<kColumnTiles> x = {}, delta = {};
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
    SplitFragment s;
    s.split(state[2 * step], state[2 * step + 1]);
    s.store(shared, step);
    if (step == kKeySteps / 2 - 1) signal_pair(kFirstHalf, pair);
    if (step == kKeySteps - 1) signal_pair(kSecondHalf, pair);
    multiply_rows(s, stage.k, step, x);
  }
  subtract_from_values(stage, pair * kPairValues, x);
#pragma unroll
  for (int step = 0; step < kColumnSteps; ++step) {
    SplitFragment s;
    s.split(x[2 * step], x[2 * step + 1]);
    multiply_triangle(s, stage.part.solve, step, delta);
  }
  wait_for_pair(kStateRead, pair);
#pragma unroll
  for (int step = 0; step < kColumnSteps; ++step) {
    SplitFragment d;
    d.split(delta[2 * step], delta[2 * step + 1]);
    d.store(shared, step);
  }
  signal_pair(kDeltaReady, pair);
  scale_columns<3>(stage, delta);
  update_state(stage, delta, state);
}

// The output's warp.
__device__ __forceinline__ void read_out(ChunkStage& stage, const PairShared& shared, int pair,
                                         int live, __nv_bfloat16* out, ptrdiff_t out_stride) {
  Tiles<kColumnTiles> y = {};
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
    if (step == 0) wait_for_pair(kFirstHalf, pair);
    if (step == kKeySteps / 2) wait_for_pair(kSecondHalf, pair);
    SplitFragment s;
    s.load(shared, step);
    multiply_rows(s, stage.q, step, y);
  }
  signal_pair(kStateRead, pair);
  scale_columns<2>(stage, y);
  wait_for_pair(kDeltaReady, pair);
#pragma unroll
  for (int step = 0; step < kColumnSteps; ++step) {
    SplitFragment d;
    d.load(shared, step);
    multiply_triangle(d, stage.part.read, step, y);
  }
  store_outputs(y, stage, pair * kPairValues, live, out, out_stride);
}

// Where a block finds its chunks.
struct Source {
  const __nv_bfloat16* q;  // of the lane's first column
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  ptrdiff_t stride;
  const ChunkPart* part;  // of the lane's first chunk
  ptrdiff_t part_stride;

  __device__ __forceinline__ explicit Source(const GdnArgs& args) {
    const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(blockIdx.z);
    const ptrdiff_t keys = ptrdiff_t{args.key_heads} * kChunkDim;
    stride = 2 * keys + ptrdiff_t{args.value_heads} * args.value_dim;
    const auto* const rows = static_cast<const __nv_bfloat16*>(args.qkv) +
                             static_cast<ptrdiff_t>(lane) * args.step.width * stride;
    q = rows + head / (args.value_heads / args.key_heads) * kChunkDim;
    k = q + keys;
    v = rows + 2 * keys + ptrdiff_t{head} * args.value_dim + blockIdx.x * kValues;
    part = cuda::chunk_part(args, lane, 0, head);
    part_stride = args.value_heads;
  }
};

// By the output's warps.
__device__ __forceinline__ void load_chunk(const Source& source, int chunk, int live,
                                           ChunkStage& stage) {
  const ptrdiff_t first = chunk * kChunk * source.stride;
  const int thread = static_cast<int>(threadIdx.x) % kHalfThreads;
  cuda::copy_rows<kChunkDim, kKeyStride>(stage.k, source.k + first, source.stride, live,
                                         kHalfThreads, thread);
  cuda::copy_rows<kChunkDim, kKeyStride>(stage.q, source.q + first, source.stride, live,
                                         kHalfThreads, thread);
  cuda::copy_rows<kValues, kValueStride>(stage.v, source.v + first, source.stride, live,
                                         kHalfThreads, thread);
  constexpr int kPieces = sizeof(ChunkPart) / 16;
  const auto* const from = reinterpret_cast<const uint4*>(source.part + chunk * source.part_stride);
  auto* const to = reinterpret_cast<uint4*>(&stage.part);
  for (int i = thread; i < kPieces; i += kHalfThreads) cuda::copy_async_16(to + i, from + i);
  cuda::commit_copies();
}

// The warp's 16 value columns of a state [key_dim, value_dim], as accumulators of S^T.
struct StateColumns {
  ptrdiff_t value_dim;
  ptrdiff_t first;  // of this thread in row 0

  __device__ __forceinline__ ptrdiff_t at(int tile, int r) const {
    const int row = tile * 8 + static_cast<int>(threadIdx.x % 4) * 2 + r % 2;
    return first + row * value_dim + r / 2 * 8;
  }
  __device__ __forceinline__ void load(const float* slot, Tiles<kKeyTiles>& state) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) state[n][r] = slot == nullptr ? 0.0F : slot[at(n, r)];
    }
  }
  __device__ __forceinline__ void store(const Tiles<kKeyTiles>& state, float* slot) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) slot[at(n, r)] = state[n][r];
    }
  }
};

// Grid: (groups of kValues value columns, value heads, lanes). With two stages the next chunk
// arrives while this one is computed.
template <int kStages>
__global__ void __launch_bounds__(kThreads, 1) gdn_chunk_kernel(const GdnArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<ChunkShared<kStages>*>(memory);
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const ptrdiff_t column = static_cast<ptrdiff_t>(blockIdx.z) * args.step.width;
  const ControlRow& control = args.step.control[column];
  const int live = cuda::live_columns(control, args.step.width);
  if (live == 0) return;

  const bool has_state = threadIdx.x < kHalfThreads;
  const int pair = static_cast<int>(threadIdx.x) / 32 % kPairs;
  const ptrdiff_t head_state = ptrdiff_t{kChunkDim} * args.value_dim;
  const ptrdiff_t slot_size = head_state * args.value_heads;
  const ptrdiff_t value = blockIdx.x * kValues + pair * kPairValues;  // the pair's first
  const StateColumns columns{
      args.value_dim, blockIdx.y * head_state + value + static_cast<int>(threadIdx.x % 32) / 4};
  const Source source(args);
  const ptrdiff_t out_stride = ptrdiff_t{args.value_heads} * args.value_dim;
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + column * out_stride +
                    blockIdx.y * args.value_dim + value;

  Tiles<kKeyTiles> state;
  if (has_state) {
    columns.load(cuda::state_slot(args.state, control.state_source, slot_size), state);
  } else {
    load_chunk(source, 0, live, s.stages[0]);
  }
#pragma unroll 1
  for (int chunk = 0; chunk * kChunk < live; ++chunk) {
    ChunkStage& stage = s.stages[chunk % kStages];
    const int first = chunk * kChunk, next = first + kChunk;
    cuda::wait_copies<0>();
    __syncthreads();  // the chunk is here
    if (has_state) {
      walk_state(stage, s.pairs[pair], pair, state);
    } else {
      if (kStages > 1 && next < live)
        load_chunk(source, chunk + 1, live - next, s.stages[(chunk + 1) % kStages]);
      read_out(stage, s.pairs[pair], pair, live - first, out + first * out_stride, out_stride);
    }
    // Nobody reads the chunk any more. With two stages the barrier above would do; but where an
    // output lags, compute-sanitizer's racecheck loses the order of what its pair signalled.
    __syncthreads();
    if (kStages == 1 && !has_state && next < live)
      load_chunk(source, chunk + 1, live - next, s.stages[0]);
  }
  if (has_state) columns.store(state, args.state + control.state_destination * slot_size);
}

template <int kStages>
void launch_chunks(cudaStream_t stream, const GdnArgs& args) {
  constexpr size_t kBytes = sizeof(ChunkShared<kStages>);
  cuda::allow_shared_bytes<gdn_chunk_kernel<kStages>>(kBytes);
  const dim3 grid(static_cast<unsigned>(args.value_dim / kValues),
                  static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.step.lanes));
  cuda::launch(gdn_chunk_kernel<kStages>,
               {.grid = grid, .block = dim3(kThreads), .shared_bytes = kBytes}, stream, args);
}

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

void CudaOpSet::gdn_chunk(Stream& stream, const GdnArgs& args) {
  cuda::check_gdn(args);
  if (args.step.columns() == 0) return;
  // The sequential form does not depend on cuts either, and it takes heads of any size.
  if (args.key_dim != kChunkDim || args.value_dim % kValues != 0) {
    cuda::run_gdn_recurrent(handle_of(stream), args);
    return;
  }
  CONVOY_CHECK(aligned(args.qkv) && aligned(args.out) && aligned(args.scratch),
               "16-byte alignment");
  CONVOY_CHECK(args.scratch != nullptr, "gdn_chunk needs scratch memory");
  cuda::prepare_chunks(handle_of(stream), args);
  if (cuda::shared_bytes_per_block() >= sizeof(ChunkShared<2>)) {
    launch_chunks<2>(handle_of(stream), args);
  } else {
    launch_chunks<1>(handle_of(stream), args);
  }
}

}  // namespace convoy
