// A GDN mixer of generated positions in one kernel: convolution, gates, delta rule and gated norm,
// with nothing rounded between them. The state is read once, stays in registers for all columns of
// the step, and is written once.
//
// What a column computes does not depend on the step's width, so products and sums that a compiler
// might contract in one of the kernel's forms only are written as intrinsics.
#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/gdn_cluster.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kDim = 128;  // of keys and of values
constexpr int kParts = 2;  // blocks that share a value head
constexpr int kValues = kDim / kParts;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxClusterBlocks = 8;
// Columns that are convolved and normed together, in steps of more than one.
constexpr int kMaxTile = kThreads / kValues;

constexpr int kHistory = 3;
constexpr int kChannels = 2 * kDim + kValues;                  // q | k | v channels of a block
constexpr int kShare = (kChannels + kThreads - 1) / kThreads;  // of a thread

// A thread holds four neighbouring value columns of every kRowGroups-th key row.
constexpr int kQuads = kValues / 4;
constexpr int kRowGroups = kThreads / kQuads;
constexpr int kRows = kDim / kRowGroups;

// A warp's partial sums: of the predictions, then of the read-outs. kAdders threads add those of
// all warps for one value; the gaps put what a warp reads together into different banks.
constexpr int kAdders = kThreads / (2 * kValues);
constexpr int kPartialHalf = kValues + 16 / kAdders;
constexpr int kPartialRow = 2 * kPartialHalf;

template <int kTile>
struct alignas(16) GenerateShared {
  float4 taps[kChannels];
  float history[kHistory][kChannels];  // the raw inputs before the tile
  float2 keys[kTile][kDim];            // convolved query and key
  float values[kTile][kValues];
  float partial[kWarps][kPartialRow];
  float delta[kValues];
  float o[kTile][kValues];
  float q_scale[kTile], k_scale[kTile], q_times_k[kTile];
  float decay[kTile], beta[kTile];
  float squares[2][kParts][kTile];  // by turns, as the arrivals
  cuda::Arrival arrival[2];         // of the other part's sums of squares
};

// The part of the step that a block works on.
struct Block {
  int key_head, head, part;
  int live, width;
  ptrdiff_t column;  // the lane's first

  __device__ __forceinline__ int first_value() const { return head * kDim + part * kValues; }
};

// The value columns and key rows of a thread.
struct StateTile {
  float4 s[kRows];

  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / kQuads;
  }
  static __device__ __forceinline__ int quad() { return static_cast<int>(threadIdx.x) % kQuads; }

  // `from`: the block's columns in row 0; null: zeros.
  __device__ __forceinline__ void load(const float* from) {
    const float* const first = from + first_row() * kDim + 4 * quad();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      s[i] = make_float4(0, 0, 0, 0);
      if (from != nullptr)
        s[i] = __ldcs(reinterpret_cast<const float4*>(first + i * kRowGroups * kDim));
    }
  }
  __device__ __forceinline__ void store(float* to) const {
    float* const first = to + first_row() * kDim + 4 * quad();
    // As intrinsics: plain assignments become stores of single floats.
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      __stcs(reinterpret_cast<float4*>(first + i * kRowGroups * kDim), s[i]);
  }
  // Sums over the rows of this warp: the lower half of its threads stores those of the predictions
  // (keys), the upper half those of the read-outs (queries).
  __device__ __forceinline__ void add_rows(const float2 (&keys)[kDim], float (&key)[kRows],
                                           float* partial) const {
    const float2* const first = keys + first_row();
    float prediction[4] = {}, read[4] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float2 qk = first[i * kRowGroups];
      const float values[4] = {s[i].x, s[i].y, s[i].z, s[i].w};
      key[i] = qk.y;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        prediction[c] = fmaf(qk.y, values[c], prediction[c]);
        read[c] = fmaf(qk.x, values[c], read[c]);
      }
    }
    static_assert(kQuads == 16);
    const bool upper = threadIdx.x % 32 >= kQuads;
    float sum[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, upper ? prediction[c] : read[c], kQuads);
      sum[c] = (upper ? read[c] : prediction[c]) + other;
    }
    *reinterpret_cast<float4*>(partial + (upper ? kPartialHalf : 0) + 4 * quad()) =
        make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  __device__ __forceinline__ void update(float decay, const float (&key)[kRows],
                                         const float* delta) {
    const float4 d = *reinterpret_cast<const float4*>(delta + 4 * quad());
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      s[i].x = fmaf(key[i], d.x, __fmul_rn(decay, s[i].x));
      s[i].y = fmaf(key[i], d.y, __fmul_rn(decay, s[i].y));
      s[i].z = fmaf(key[i], d.z, __fmul_rn(decay, s[i].z));
      s[i].w = fmaf(key[i], d.w, __fmul_rn(decay, s[i].w));
    }
  }
};

// The convolution of a block's channels. A thread has channels i, i + kThreads, …: 0..127 are q,
// ..255 k, then come the block's values. What it keeps in shared memory is its own.
struct Convolution {
  int channel[kShare];

  static __device__ __forceinline__ int index(int n) {
    return static_cast<int>(threadIdx.x) + n * kThreads;
  }
  // Starts the copies of weights and of the lane's source slot; null: zeros.
  template <int kTile>
  __device__ __forceinline__ void load(const GdnGenerateArgs& args, const Block& block,
                                       const float* slot, int channels, GenerateShared<kTile>& s) {
    const int keys = args.key_heads * kDim;
#pragma unroll
    for (int n = 0; n < kShare; ++n) {
      const int i = index(n);
      if (i >= kChannels) break;
      channel[n] = i < kDim       ? block.key_head * kDim + i
                   : i < 2 * kDim ? keys + block.key_head * kDim + i - kDim
                                  : 2 * keys + block.first_value() + i - 2 * kDim;
      cuda::copy_async_16(&s.taps[i], args.conv_weight + ptrdiff_t{4} * channel[n]);
      // A slot that is not read must still be an address.
      const float* const from = (slot == nullptr ? args.conv_weight : slot) + channel[n];
      const ptrdiff_t stride = slot == nullptr ? 0 : channels;
#pragma unroll
      for (int j = 0; j < kHistory; ++j)
        cuda::copy_async_4(&s.history[j][i], from + j * stride, slot != nullptr);
    }
    cuda::commit_copies();
  }
  // The raw inputs of a tile; `row` is its first, `count` how many exist.
  template <int kTile>
  __device__ __forceinline__ void load_inputs(const __nv_bfloat16* row, ptrdiff_t stride, int count,
                                              __nv_bfloat16 (&inputs)[kShare][kTile]) const {
#pragma unroll
    for (int n = 0; n < kShare; ++n) {
      if (index(n) >= kChannels) break;
      const __nv_bfloat16* from = row + channel[n];
#pragma unroll
      for (int i = 0; i < kTile; ++i, from += stride) {
        if (i < count) inputs[n][i] = *from;
      }
    }
  }
  template <int kTile>
  __device__ __forceinline__ void run(const __nv_bfloat16 (&inputs)[kShare][kTile], int count,
                                      GenerateShared<kTile>& s) const {
#pragma unroll
    for (int n = 0; n < kShare; ++n) {
      const int at = index(n);
      if (at >= kChannels) break;
      const float4 taps = s.taps[at];
      float before[kHistory] = {s.history[0][at], s.history[1][at], s.history[2][at]};
      // Queries and keys are interleaved.
      float* to = at < kDim       ? &s.keys[0][at].x
                  : at < 2 * kDim ? &s.keys[0][at - kDim].y
                                  : &s.values[0][at - 2 * kDim];
      const int step = at < 2 * kDim ? 2 * kDim : kValues;
#pragma unroll
      for (int i = 0; i < kTile; ++i, to += step) {
        if (i >= count) break;
        const float now = __bfloat162float(inputs[n][i]);
        float sum = __fmul_rn(taps.x, before[0]);
        sum = fmaf(taps.y, before[1], sum);
        sum = fmaf(taps.z, before[2], sum);
        *to = cuda::silu_of(fmaf(taps.w, now, sum));
        before[0] = before[1], before[1] = before[2], before[2] = now;
      }
#pragma unroll
      for (int j = 0; j < kHistory; ++j) s.history[j][at] = before[j];
    }
  }
  template <int kTile>
  __device__ __forceinline__ void store(const GenerateShared<kTile>& s, float* slot, int channels,
                                        bool with_keys) const {
#pragma unroll
    for (int n = 0; n < kShare; ++n) {
      const int at = index(n);
      if (at >= kChannels || (at < 2 * kDim && !with_keys)) continue;
#pragma unroll
      for (int j = 0; j < kHistory; ++j)
        slot[ptrdiff_t{j} * channels + channel[n]] = s.history[j][at];
    }
  }
};

// By warp i: what scales column i's query and key to unit length.
template <int kTile>
__device__ __forceinline__ void scale_column(GenerateShared<kTile>& s, int i) {
  float qq = 0, kk = 0, qk = 0;
#pragma unroll
  for (int n = 0; n < kDim / 32; ++n) {
    const float2 both = s.keys[i][32 * n + static_cast<int>(threadIdx.x % 32)];
    qq = fmaf(both.x, both.x, qq);
    kk = fmaf(both.y, both.y, kk);
    qk = fmaf(both.x, both.y, qk);
  }
  qq = cuda::warp_sum(qq), kk = cuda::warp_sum(kk), qk = cuda::warp_sum(qk);
  if (threadIdx.x % 32 != 0) return;
  const float q_scale = __fmul_rn(rsqrtf(qq + cuda::kUnitEps), rsqrtf(static_cast<float>(kDim)));
  const float k_scale = rsqrtf(kk + cuda::kUnitEps);
  s.q_scale[i] = q_scale, s.k_scale[i] = k_scale;
  s.q_times_k[i] = __fmul_rn(__fmul_rn(qk, q_scale), k_scale);
}

// kAdders threads add one value's partial sums of the state before the column:
//   S' = exp(g) S + k d^T and o = S'^T q  give  o = exp(g) S^T q + (q . k) d,
// so that prediction and read-out need one pass over the state and one sum over its rows.
template <int kTile>
__device__ __forceinline__ void finish_column(GenerateShared<kTile>& s, int i) {
  const int thread = static_cast<int>(threadIdx.x);
  const int value = thread / (2 * kAdders), adder = thread % kAdders;
  const int at = thread / kAdders % 2 * kPartialHalf + value;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w += kAdders) sum += s.partial[w + adder][at];
#pragma unroll
  for (int distance = 1; distance < kAdders; distance *= 2)
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  const float read = __shfl_xor_sync(0xFFFFFFFFU, sum, kAdders);
  if (thread % (2 * kAdders) != 0) return;
  const float decay = s.decay[i];
  const float prediction = __fmul_rn(__fmul_rn(decay, s.k_scale[i]), sum);
  const float delta = __fmul_rn(s.beta[i], __fsub_rn(s.values[i][value], prediction));
  s.o[i][value] = fmaf(s.q_times_k[i], delta, __fmul_rn(__fmul_rn(decay, s.q_scale[i]), read));
  s.delta[value] = __fmul_rn(s.k_scale[i], delta);
}

// Gated norm of a tile, first half: the sums of squares of a block's columns go to both blocks of
// the head.
template <int kTile>
__device__ __forceinline__ void share_squares(const Block& block, GenerateShared<kTile>& s,
                                              int turn, int count) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) s.arrival[turn].expect_floats(count);
  if (warp >= count) return;
  const float low = s.o[warp][lane], high = s.o[warp][lane + 32];
  const float squares = cuda::warp_sum(fmaf(low, low, __fmul_rn(high, high)));
  if (lane != 0) return;
  float* const sum = &s.squares[turn][block.part][warp];
  *sum = squares;
  // The blocks of a cluster lie along x, the parts of a head beside each other.
  cuda::send_to_block(blockIdx.x ^ 1U, sum, s.arrival[turn], squares);
}

// Second half. Both blocks add the parts in the same order.
template <int kTile>
__device__ __forceinline__ void norm_tile(const GdnGenerateArgs& args, const Block& block,
                                          const GenerateShared<kTile>& s, int turn, int first,
                                          int count, float weight, __nv_bfloat16 z) {
  const int i = static_cast<int>(threadIdx.x) / kValues;
  const int value = static_cast<int>(threadIdx.x) % kValues;
  if (i >= count) return;
  const float mean =
      __fmul_rn(s.squares[turn][0][i] + s.squares[turn][1][i], 1.0F / static_cast<float>(kDim));
  const float normed = __fmul_rn(s.o[i][value], rsqrtf(__fadd_rn(mean, args.eps)));
  const float y = __fmul_rn(__fmul_rn(normed, weight), cuda::silu_of(__bfloat162float(z)));
  const ptrdiff_t row = (block.column + first + i) * args.value_heads * kDim;
  static_cast<__nv_bfloat16*>(args.out)[row + block.first_value() + value] = __float2bfloat16_rn(y);
}

__device__ __forceinline__ void zero_dead_columns(const GdnGenerateArgs& args, const Block& block) {
  const int count = (block.width - block.live) * kValues;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const ptrdiff_t row = (block.column + block.live + i / kValues) * args.value_heads * kDim;
    static_cast<__nv_bfloat16*>(args.out)[row + block.first_value() + i % kValues] =
        __float2bfloat16_rn(0.0F);
  }
}

// What a thread reads of a tile's rows. Loaded for columns that may turn out to be dead: how many
// are alive is on its way itself.
template <int kTile>
struct TileInputs {
  __nv_bfloat16 u[kShare][kTile];
  __nv_bfloat16 z, a, b;

  // The thread that computes the gates of column i: in the last warp, which has the least to do.
  static __device__ __forceinline__ int gate_column() {
    return static_cast<int>(threadIdx.x) - (kThreads - 32);
  }
  // `rows`: the lane's first row.
  __device__ __forceinline__ void load(const GdnGenerateArgs& args, const Block& block,
                                       const Convolution& conv, const __nv_bfloat16* rows,
                                       int first) {
    const int count = min(kTile, block.width - first), thread = static_cast<int>(threadIdx.x);
    const ptrdiff_t stride = args.column_stride;
    const __nv_bfloat16* const row = rows + first * stride;
    const int values = args.value_heads * kDim;
    const __nv_bfloat16* const z_row = row + 2 * args.key_heads * kDim + values;
    conv.load_inputs(row, stride, count, u);
    if (thread / kValues < count)
      z = z_row[thread / kValues * stride + block.first_value() + thread % kValues];
    const int column = gate_column();
    if (column >= 0 && column < count) {
      const __nv_bfloat16* const gates = z_row + column * stride + values + block.head;
      b = gates[0];
      a = gates[args.value_heads];
    }
  }
};

// Weights of a thread, loaded before the wait for earlier kernels.
struct Weights {
  float a_log, dt_bias, norm;
};

// All live columns of the lane, kTile at a time.
template <int kTile>
__device__ __forceinline__ void run_columns(const GdnGenerateArgs& args, const Block& block,
                                            const Weights& weights, const Convolution& conv,
                                            TileInputs<kTile>& inputs, const __nv_bfloat16* rows,
                                            StateTile& tile, float* state,
                                            GenerateShared<kTile>& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int first = 0, tiles = 0; first < block.live; first += kTile, ++tiles) {
    const int count = min(kTile, block.live - first), turn = tiles % 2;
    if (first > 0) inputs.load(args, block, conv, rows, first);
    conv.run(inputs.u, count, s);
    const int column = TileInputs<kTile>::gate_column();
    if (column >= 0 && column < count) {
      s.beta[column] = cuda::sigmoid(__bfloat162float(inputs.b));
      const float x = __fadd_rn(__bfloat162float(inputs.a), weights.dt_bias);
      s.decay[column] = expf(cuda::log_decay(weights.a_log, x));
    }
    __syncthreads();
    if (first == 0) {
      cuda::wait_for_cluster();  // every block's arrivals are prepared
      // From here on nobody in this block reads the source slot of the convolution any more.
      cuda::arrive_at_cluster();
    }
    if (warp < count) scale_column(s, warp);
    for (int i = 0; i < count; ++i) {
      float key[kRows];
      tile.add_rows(s.keys[i], key, s.partial[warp]);
      __syncthreads();
      finish_column(s, i);
      __syncthreads();
      tile.update(s.decay[i], key, s.delta);
    }
    share_squares(block, s, turn, count);
    if (first + kTile >= block.live) tile.store(state);
    __syncthreads();
    s.arrival[turn].wait(tiles / 2);
    norm_tile(args, block, s, turn, first, count, weights.norm, inputs.z);
    if constexpr (kTile == 1) break;  // steps of one column only
  }
}

// Grid: (blocks of a key head, key heads, lanes). The blocks of one lane and key head are a
// cluster: every value head that reads it, in kParts blocks each.
template <int kTile>
__global__ void __launch_bounds__(kThreads, kTile == 1 ? 3 : 2)
    gdn_generate_kernel(const GdnGenerateArgs args) {
  __shared__ GenerateShared<kTile> s;
  cuda::allow_dependents();
  Block block;
  block.key_head = static_cast<int>(blockIdx.y);
  block.head = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) / kParts;
  block.part = static_cast<int>(blockIdx.x) % kParts;
  block.width = kTile == 1 ? 1 : args.step.width;
  block.column = static_cast<ptrdiff_t>(blockIdx.z) * block.width;
  const ControlRow& control = args.step.control[block.column];
  const int channels = (2 * args.key_heads + args.value_heads) * kDim;
  const ptrdiff_t conv_size = ptrdiff_t{kHistory} * channels;
  const ptrdiff_t state_size = ptrdiff_t{args.value_heads} * kDim * kDim;
  const ptrdiff_t in_slot = ptrdiff_t{block.head} * kDim * kDim + block.part * kValues;

  // Before the wait for earlier kernels, so that the state's way from memory is hidden behind the
  // projection. Safe because a step's control rows come by a copy, which a later kernel never
  // overtakes: every kernel before that copy is done, among them the one that last wrote this
  // layer's slots, and no other kernel of this step writes them (kernels/ops/op_set.h).
  const int slot = control.state_source;
  const float* const source = cuda::state_slot(args.state, slot, state_size);
  StateTile tile;
  tile.load(source == nullptr ? nullptr : source + in_slot);
  Convolution conv{};
  conv.load(args, block, cuda::state_slot(args.conv_state, slot, conv_size), channels, s);
  const Weights weights{
      __ldg(args.a_log + block.head), __ldg(args.dt_bias + block.head),
      __ldg(args.norm + block.part * kValues + static_cast<int>(threadIdx.x) % kValues)};
  if (threadIdx.x < 2) s.arrival[threadIdx.x].prepare();
  cuda::arrive_at_cluster();
  cuda::grid_dependency_wait();

  const auto* const rows =
      static_cast<const __nv_bfloat16*>(args.projection) + block.column * args.column_stride;
  TileInputs<kTile> inputs;
  inputs.load(args, block, conv, rows, 0);
  block.live = cuda::live_columns(control, block.width);
  const ptrdiff_t destination = control.state_destination;
  cuda::wait_copies<0>();
  zero_dead_columns(args, block);
  if (block.live == 0) {  // in the whole cluster
    cuda::wait_for_cluster();
    return;
  }
  run_columns(args, block, weights, conv, inputs, rows, tile,
              args.state + destination * state_size + in_slot, s);
  // The first block of the cluster writes the channels of its key head once all blocks have read
  // them, which matters where both slots are the same.
  cuda::wait_for_cluster();
  conv.store(s, args.conv_state + destination * conv_size, channels, blockIdx.x == 0);
}

// Whether the kernel was compiled for clusters, which begin with compute capability 9.0.
bool has_clusters() {
  static const bool has = cuda::code_version(gdn_generate_kernel<1>) >= 90;
  return has;
}

bool fits(const GdnGenerateArgs& args) {
  return args.key_dim == kDim && args.value_dim == kDim &&
         kParts * (args.value_heads / args.key_heads) <= kMaxClusterBlocks;
}

}  // namespace

void CudaOpSet::gdn_generate(Stream& stream, const GdnGenerateArgs& args) {
  CONVOY_CHECK_OP(args.key_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads % args.key_heads, ==, 0);
  CONVOY_CHECK_OP(args.step.lanes, <=, kMaxLanes);
  if (args.step.columns() == 0) return;
  if (!fits(args) || !has_clusters()) {
    OpSet::gdn_generate(stream, args);
    return;
  }
  CONVOY_CHECK_OP(reinterpret_cast<uintptr_t>(args.conv_weight) % 16, ==, 0U);
  CONVOY_CHECK_OP(reinterpret_cast<uintptr_t>(args.state) % 16, ==, 0U);
  const auto blocks = static_cast<unsigned>(kParts * (args.value_heads / args.key_heads));
  cuda::launch(args.step.width == 1 ? gdn_generate_kernel<1> : gdn_generate_kernel<kMaxTile>,
               {.grid = dim3(blocks, static_cast<unsigned>(args.key_heads),
                             static_cast<unsigned>(args.step.lanes)),
                .block = dim3(kThreads),
                .cluster_blocks = blocks},
               handle_of(stream), args);
}

}  // namespace convoy
