#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0F + __expf(-x));
}

template <bool kVectorised>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const __nv_bfloat16* gate_up, __nv_bfloat16* out, int size) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int vector = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (vector * cuda::kVectorValues >= size) return;
  const ptrdiff_t row = blockIdx.y;
  const __nv_bfloat16* const gates = gate_up + row * 2 * size;
  float gate[cuda::kVectorValues], up[cuda::kVectorValues];
  cuda::load_vector<kVectorised>(gates, vector, size, gate);
  cuda::load_vector<kVectorised>(gates + size, vector, size, up);
#pragma unroll
  for (int i = 0; i < cuda::kVectorValues; ++i) up[i] *= silu(gate[i]);
  cuda::store_vector<kVectorised>(out + row * size, vector, size, up);
}

}  // namespace

void CudaOpSet::swiglu(Stream& stream, const SwigluArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  if (args.rows == 0) return;
  const bool vectorised =
      cuda::vectorised(args.gate_up, args.size) && cuda::vectorised(args.out, args.size);
  const int per_block = kThreads * cuda::kVectorValues;
  const dim3 grid(static_cast<unsigned>((args.size + per_block - 1) / per_block),
                  static_cast<unsigned>(args.rows));
  cuda::launch(vectorised ? swiglu_kernel<true> : swiglu_kernel<false>,
               {.grid = grid, .block = dim3(kThreads)}, handle_of(stream),
               static_cast<const __nv_bfloat16*>(args.gate_up),
               static_cast<__nv_bfloat16*>(args.out), args.size);
}

}  // namespace convoy
