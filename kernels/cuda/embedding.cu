#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kThreads = 256;

// One block copies up to kThreads * 8 values of one row.
template <bool kVectorised>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const int32_t* ids, const uint16_t* table, uint16_t* out, int hidden) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int row = blockIdx.y;
  const int vector = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int first = vector * cuda::kVectorValues;
  if (first >= hidden) return;
  const uint16_t* const source = table + static_cast<ptrdiff_t>(ids[row]) * hidden + first;
  uint16_t* const destination = out + static_cast<ptrdiff_t>(row) * hidden + first;
  if (kVectorised) {  // then hidden is a multiple of 8
    *reinterpret_cast<uint4*>(destination) = *reinterpret_cast<const uint4*>(source);
    return;
  }
  const int count = min(cuda::kVectorValues, hidden - first);
  for (int i = 0; i < count; ++i) destination[i] = source[i];
}

}  // namespace

void CudaOpSet::embedding(Stream& stream, const EmbeddingArgs& args) {
  CONVOY_CHECK_OP(args.hidden, >, 0);
  // A packed weight is row-major too.
  const uint16_t* const table = args.table != nullptr ? args.table : args.packed.data;
  CONVOY_CHECK(table != nullptr, "an embedding without a table");
  if (args.table == nullptr) CONVOY_CHECK_OP(args.packed.in_features, ==, args.hidden);
  if (args.rows == 0) return;
  const bool vectorised =
      cuda::vectorised(table, args.hidden) && cuda::vectorised(args.out, args.hidden);
  const int per_block = kThreads * cuda::kVectorValues;
  const dim3 grid(static_cast<unsigned>((args.hidden + per_block - 1) / per_block),
                  static_cast<unsigned>(args.rows));
  cuda::launch(vectorised ? embedding_kernel<true> : embedding_kernel<false>,
               {.grid = grid, .block = dim3(kThreads)}, handle_of(stream), args.ids, table,
               static_cast<uint16_t*>(args.out), args.hidden);
}

}  // namespace convoy
