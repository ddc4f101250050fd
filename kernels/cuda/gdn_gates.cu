#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) gdn_gates_kernel(const GdnGatesArgs args) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int row = index / args.value_heads, head = index % args.value_heads;
  if (row >= args.rows) return;
  const auto* a = static_cast<const __nv_bfloat16*>(args.a) + row * args.a_row_stride;
  const auto* b = static_cast<const __nv_bfloat16*>(args.b) + row * args.b_row_stride;
  args.g[index] = cuda::log_decay(args.a_log[head], __bfloat162float(a[head]) + args.dt_bias[head]);
  args.beta[index] = cuda::sigmoid(__bfloat162float(b[head]));
}

}  // namespace

void CudaOpSet::gdn_gates(Stream& stream, const GdnGatesArgs& args) {
  CONVOY_CHECK_OP(args.value_heads, >, 0);
  if (args.rows == 0) return;
  const int count = args.rows * args.value_heads;
  cuda::launch(gdn_gates_kernel,
               {.grid = dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)),
                .block = dim3(kThreads)},
               handle_of(stream), args);
}

}  // namespace convoy
