#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

using cuda::kVectorValues;

// Rows of at most this many values are a warp's work, longer ones a block's.
constexpr int kWarpSize = 1024;
constexpr int kWarpsPerBlock = 4;
constexpr int kMaxThreads = 1024;
// Vectors of eight values that a thread keeps in registers.
constexpr int kMaxWarpVectors = kWarpSize / (32 * kVectorValues);
constexpr int kBlockVectors = 2;

struct NormRows {
  const __nv_bfloat16* x;
  __nv_bfloat16* out;
  const float* weight;
  int rows, groups, size;
  ptrdiff_t x_row_stride, x_group_stride, out_row_stride, out_group_stride;
  float eps, offset;
};

__device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  return sum;
}

// One row's share of a thread: vectors first, first + step, … . Weights never change, so they may
// be read before the kernels before this one have ended.
template <bool kVectorised, int kVectors>
struct RowShare {
  float x[kVectors][kVectorValues];
  float scale[kVectors][kVectorValues];  // weight + offset
  int first, step;

  __device__ __forceinline__ void load_weights(const NormRows& args) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = (first + v * step) * kVectorValues;
      if (kVectorised && at + kVectorValues <= args.size) {
        const auto* const four = reinterpret_cast<const float4*>(args.weight + at);
        const float4 low = __ldg(four), high = __ldg(four + 1);
        const float weights[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < kVectorValues; ++i) scale[v][i] = weights[i] + args.offset;
        continue;
      }
#pragma unroll
      for (int i = 0; i < kVectorValues; ++i)
        scale[v][i] = at + i < args.size ? __ldg(args.weight + at + i) + args.offset : 0.0F;
    }
  }
  __device__ __forceinline__ void load(const __nv_bfloat16* row, int size) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      cuda::load_vector<kVectorised>(row, first + v * step, size, x[v]);
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVectorValues; ++i) sum = fmaf(x[v][i], x[v][i], sum);
    }
    return sum;
  }
  __device__ __forceinline__ void store(__nv_bfloat16* row, int size, float factor) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVectorValues; ++i) x[v][i] = x[v][i] * factor * scale[v][i];
      cuda::store_vector<kVectorised>(row, first + v * step, size, x[v]);
    }
  }
};

__device__ __forceinline__ float norm_factor(float squares, const NormRows& args) {
  return rsqrtf(squares / static_cast<float>(args.size) + args.eps);
}

template <bool kVectorised, int kVectors>
__global__ void __launch_bounds__(32 * kWarpsPerBlock) rms_norm_warps_kernel(const NormRows args) {
  cuda::allow_dependents();
  RowShare<kVectorised, kVectors> share;
  share.first = static_cast<int>(threadIdx.x % 32);
  share.step = 32;
  share.load_weights(args);
  cuda::grid_dependency_wait();
  const int index = static_cast<int>(blockIdx.x * kWarpsPerBlock + threadIdx.x / 32);
  const int row = index / args.groups, group = index % args.groups;
  if (row >= args.rows) return;
  share.load(args.x + row * args.x_row_stride + group * args.x_group_stride, args.size);
  const float factor = norm_factor(sum_of_warp(share.squares()), args);
  share.store(args.out + row * args.out_row_stride + group * args.out_group_stride, args.size,
              factor);
}

// One row a block.
template <bool kVectorised>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_blocks_kernel(const NormRows args) {
  __shared__ float sums[32];
  cuda::allow_dependents();
  RowShare<kVectorised, kBlockVectors> share;
  share.first = static_cast<int>(threadIdx.x);
  share.step = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  share.load_weights(args);
  cuda::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x) / args.groups;
  const int group = static_cast<int>(blockIdx.x) % args.groups;
  share.load(args.x + row * args.x_row_stride + group * args.x_group_stride, args.size);
  const float of_warp = sum_of_warp(share.squares());
  if (lane == 0) sums[warp] = of_warp;
  __syncthreads();
  const float squares = sum_of_warp(lane < warps ? sums[lane] : 0.0F);
  share.store(args.out + row * args.out_row_stride + group * args.out_group_stride, args.size,
              norm_factor(squares, args));
}

template <bool kVectorised>
void launch_rms_norm(const NormRows& args, cudaStream_t stream) {
  const int count = args.rows * args.groups;
  const int vectors = (args.size + kVectorValues - 1) / kVectorValues;
  if (args.size <= kWarpSize) {
    const dim3 grid(static_cast<unsigned>((count + kWarpsPerBlock - 1) / kWarpsPerBlock));
    cuda::launch(vectors <= 32 ? rms_norm_warps_kernel<kVectorised, 1>
                               : rms_norm_warps_kernel<kVectorised, kMaxWarpVectors>,
                 {.grid = grid, .block = dim3(32 * kWarpsPerBlock)}, stream, args);
    return;
  }
  const int threads = ((vectors + kBlockVectors - 1) / kBlockVectors + 31) / 32 * 32;
  CONVOY_CHECK_OP(threads, <=, kMaxThreads);
  cuda::launch(
      rms_norm_blocks_kernel<kVectorised>,
      {.grid = dim3(static_cast<unsigned>(count)), .block = dim3(static_cast<unsigned>(threads))},
      stream, args);
}

}  // namespace

void CudaOpSet::rms_norm(Stream& stream, const RmsNormArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  CONVOY_CHECK_OP(args.groups, >, 0);
  if (args.rows == 0) return;
  const NormRows rows{static_cast<const __nv_bfloat16*>(args.x),
                      static_cast<__nv_bfloat16*>(args.out),
                      args.weight,
                      args.rows,
                      args.groups,
                      args.size,
                      args.x_row_stride,
                      args.x_group_stride,
                      args.out_row_stride,
                      args.out_group_stride,
                      args.eps,
                      args.zero_centred ? 1.0F : 0.0F};
  const bool vectorised = cuda::vectorised(args.x, args.x_row_stride) &&
                          cuda::vectorised(args.out, args.out_row_stride) &&
                          reinterpret_cast<uintptr_t>(args.weight) % 16 == 0 &&
                          (args.groups == 1 || (args.x_group_stride % kVectorValues == 0 &&
                                                args.out_group_stride % kVectorValues == 0));
  if (vectorised)
    launch_rms_norm<true>(rows, handle_of(stream));
  else
    launch_rms_norm<false>(rows, handle_of(stream));
}

}  // namespace convoy
