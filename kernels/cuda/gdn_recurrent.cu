// The gated delta rule one column after the other, for heads of any size: what generated positions
// use where gdn_generate has no fused kernel, and prompts where gdn_chunk has none.
#include "kernels/cuda/gdn_recurrent.h"

#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kMaxDim = 256;
// A warp's threads are neighbouring value columns; the warps share the key rows.
constexpr int kValues = 32;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = kMaxDim / kWarps;

struct RecurrentShared {
  float q[kMaxDim], k[kMaxDim];
  float partial[2][kWarps][kValues];
  float q_scale, k_scale;
};

struct HeadRows {
  const __nv_bfloat16* q;
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;  // of this thread's value column
};

__device__ __forceinline__ float add_warps(const float (&partial)[kWarps][kValues]) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w][threadIdx.x % 32];
  return sum;
}

// Warp 0 scales the query to unit length, warp 1 the key.
__device__ __forceinline__ void load_unit_keys(const HeadRows& rows, int key_dim,
                                               RecurrentShared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp > 1) return;
  const __nv_bfloat16* const from = warp == 0 ? rows.q : rows.k;
  float* const to = warp == 0 ? s.q : s.k;
  float squares = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < key_dim; d += 32) {
    to[d] = __bfloat162float(from[d]);
    squares = fmaf(to[d], to[d], squares);
  }
  float scale = rsqrtf(cuda::warp_sum(squares) + cuda::kUnitEps);
  if (warp == 0) scale *= rsqrtf(static_cast<float>(key_dim));
  for (int d = static_cast<int>(threadIdx.x % 32); d < key_dim; d += 32) to[d] *= scale;
}

// One column; `state` are the rows warp, warp + kWarps, … of the thread's value column.
__device__ __forceinline__ float run_column(const HeadRows& rows, int key_dim, float decay,
                                            float beta, bool inside, float (&state)[kRows],
                                            RecurrentShared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, value = static_cast<int>(threadIdx.x) % 32;
  load_unit_keys(rows, key_dim, s);
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = warp + i * kWarps;
    if (d >= key_dim) break;
    state[i] *= decay;
    sum = fmaf(s.k[d], state[i], sum);
  }
  s.partial[0][warp][value] = sum;
  __syncthreads();
  const float v = inside ? __bfloat162float(*rows.v) : 0.0F;
  const float delta = beta * (v - add_warps(s.partial[0]));
  sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = warp + i * kWarps;
    if (d >= key_dim) break;
    state[i] = fmaf(s.k[d], delta, state[i]);
    sum = fmaf(s.q[d], state[i], sum);
  }
  s.partial[1][warp][value] = sum;
  __syncthreads();
  return add_warps(s.partial[1]);
}

// Grid: (groups of value columns, value heads, lanes).
__global__ void __launch_bounds__(kThreads) gdn_recurrent_kernel(const GdnArgs args) {
  __shared__ RecurrentShared s;
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int value = static_cast<int>(blockIdx.x * kValues + threadIdx.x % 32);
  const bool inside = value < args.value_dim;
  const int head = static_cast<int>(blockIdx.y);
  const int width = args.step.width;
  const ptrdiff_t column = static_cast<ptrdiff_t>(blockIdx.z) * width;
  const ControlRow& control = args.step.control[column];
  const int live = cuda::live_columns(control, width);

  const ptrdiff_t head_state = ptrdiff_t{args.key_dim} * args.value_dim;
  const ptrdiff_t slot_size = head_state * args.value_heads;
  const ptrdiff_t in_slot = head * head_state + value;
  const float* const source = cuda::state_slot(args.state, control.state_source, slot_size);
  float state[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = warp + i * kWarps;
    if (inside && live > 0 && source != nullptr && d < args.key_dim)
      state[i] = source[in_slot + ptrdiff_t{d} * args.value_dim];
  }

  const ptrdiff_t keys = ptrdiff_t{args.key_heads} * args.key_dim;
  const ptrdiff_t out_stride = ptrdiff_t{args.value_heads} * args.value_dim;
  const ptrdiff_t key_head = head / (args.value_heads / args.key_heads);
  const ptrdiff_t in_row = ptrdiff_t{head} * args.value_dim + value;
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + column * out_stride + in_row;
  for (int i = 0; i < live; ++i) {
    const auto* const row =
        static_cast<const __nv_bfloat16*>(args.qkv) + (column + i) * (2 * keys + out_stride);
    const HeadRows rows{row + key_head * args.key_dim, row + keys + key_head * args.key_dim,
                        row + 2 * keys + in_row};
    const ptrdiff_t gate = (column + i) * args.value_heads + head;
    const float o =
        run_column(rows, args.key_dim, expf(args.g[gate]), args.beta[gate], inside, state, s);
    if (inside && warp == 0) out[i * out_stride] = __float2bfloat16_rn(o);
  }
  if (!inside) return;
  for (int i = live + warp; i < width; i += kWarps) out[i * out_stride] = __float2bfloat16_rn(0.0F);
  if (live == 0) return;
  float* const destination = args.state + control.state_destination * slot_size + in_slot;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = warp + i * kWarps;
    if (d < args.key_dim) destination[ptrdiff_t{d} * args.value_dim] = state[i];
  }
}

}  // namespace

namespace cuda {

void check_gdn(const GdnArgs& args) {
  CONVOY_CHECK_OP(args.step.lanes, <=, kMaxLanes);
  CONVOY_CHECK_OP(args.key_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads % args.key_heads, ==, 0);
  CONVOY_CHECK_OP(args.key_dim, >, 0);
  CONVOY_CHECK_OP(args.key_dim, <=, kMaxDim);
  CONVOY_CHECK_OP(args.value_dim, >, 0);
}

void run_gdn_recurrent(cudaStream_t stream, const GdnArgs& args) {
  const dim3 grid(static_cast<unsigned>((args.value_dim + kValues - 1) / kValues),
                  static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.step.lanes));
  launch(gdn_recurrent_kernel, {.grid = grid, .block = dim3(kThreads)}, stream, args);
}

}  // namespace cuda

void CudaOpSet::gdn_recurrent(Stream& stream, const GdnArgs& args) {
  cuda::check_gdn(args);
  if (args.step.columns() > 0) cuda::run_gdn_recurrent(handle_of(stream), args);
}

}  // namespace convoy
