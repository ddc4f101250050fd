#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

using cuda::kVectorValues;

// A head is the work of half a warp: 128 values are one 16-byte access per thread.
constexpr int kThreads = 256;
constexpr int kHeadThreads = 16;
constexpr int kHeadsPerBlock = kThreads / kHeadThreads;

// Vectors first, first + kHeadThreads, … of one head. A thread keeps its first vector in registers:
// there is no other up to 128 values.
template <bool kVectorised>
struct HeadShare {
  int first, size, vectors;
  float weight[kVectorValues], o[kVectorValues], z[kVectorValues];

  __device__ __forceinline__ void load_weight(const float* from, int vector) {
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i) {
      const int at = vector * kVectorValues + i;
      weight[i] = at < size ? __ldg(from + at) : 0.0F;
    }
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i) sum = fmaf(o[i], o[i], sum);
    return sum;
  }
  __device__ __forceinline__ void store(__nv_bfloat16* out, int vector, float scale) const {
    float y[kVectorValues];
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i) y[i] = o[i] * scale * weight[i] * cuda::silu_of(z[i]);
    cuda::store_vector<kVectorised>(out, vector, size, y);
  }
};

template <bool kVectorised>
__global__ void __launch_bounds__(kThreads) gated_rms_norm_kernel(const GatedRmsNormArgs args) {
  cuda::allow_dependents();
  HeadShare<kVectorised> share;
  share.first = static_cast<int>(threadIdx.x % kHeadThreads);
  share.size = args.size;
  share.vectors = (args.size + kVectorValues - 1) / kVectorValues;
  share.load_weight(args.weight, share.first);
  cuda::grid_dependency_wait();
  const int count = args.rows * args.heads;
  const int index = static_cast<int>(blockIdx.x * kHeadsPerBlock + threadIdx.x / kHeadThreads);
  // Threads beyond the last head stay for the sums of their warp.
  const int head = min(index, count - 1);
  const auto* o = static_cast<const __nv_bfloat16*>(args.o) + ptrdiff_t{head} * args.size;
  const auto* z = static_cast<const __nv_bfloat16*>(args.z) +
                  (head / args.heads) * args.z_row_stride +
                  ptrdiff_t{head % args.heads} * args.size;
  auto* out = static_cast<__nv_bfloat16*>(args.out) + ptrdiff_t{head} * args.size;
  cuda::load_vector<kVectorised>(o, share.first, args.size, share.o);
  cuda::load_vector<kVectorised>(z, share.first, args.size, share.z);
  float squares = share.squares();
  for (int v = share.first + kHeadThreads; v < share.vectors; v += kHeadThreads) {
    float more[kVectorValues];
    cuda::load_vector<kVectorised>(o, v, args.size, more);
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i) squares = fmaf(more[i], more[i], squares);
  }
#pragma unroll
  for (int distance = kHeadThreads / 2; distance > 0; distance /= 2)
    squares += __shfl_xor_sync(0xFFFFFFFFU, squares, distance);
  if (index >= count) return;
  const float scale = rsqrtf(squares / static_cast<float>(args.size) + args.eps);
  share.store(out, share.first, scale);
  for (int v = share.first + kHeadThreads; v < share.vectors; v += kHeadThreads) {
    share.load_weight(args.weight, v);
    cuda::load_vector<kVectorised>(o, v, args.size, share.o);
    cuda::load_vector<kVectorised>(z, v, args.size, share.z);
    share.store(out, v, scale);
  }
}

}  // namespace

void CudaOpSet::gated_rms_norm(Stream& stream, const GatedRmsNormArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  CONVOY_CHECK_OP(args.heads, >, 0);
  if (args.rows == 0) return;
  const bool vectorised = cuda::vectorised(args.o, args.size) &&
                          cuda::vectorised(args.out, args.size) &&
                          cuda::vectorised(args.z, args.z_row_stride);
  const int count = args.rows * args.heads;
  const dim3 grid(static_cast<unsigned>((count + kHeadsPerBlock - 1) / kHeadsPerBlock));
  cuda::launch(vectorised ? gated_rms_norm_kernel<true> : gated_rms_norm_kernel<false>,
               {.grid = grid, .block = dim3(kThreads)}, handle_of(stream), args);
}

}  // namespace convoy
