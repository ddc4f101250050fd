#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

// One warp, 32 deltas at a time, so that of two deltas for one entry the later one wins.
__global__ void __launch_bounds__(32)
    update_block_tables_kernel(const BlockTableDelta* deltas, int count, int32_t* tables,
                               int max_pages_per_row) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int lane = static_cast<int>(threadIdx.x);
  for (int first = 0; first < count; first += 32) {
    const bool mine = first + lane < count;
    const BlockTableDelta delta = mine ? deltas[first + lane] : BlockTableDelta{-1, -1, -1};
    if (mine && (delta.kv_row < 0 || delta.block < 0 || delta.block >= max_pages_per_row)) __trap();
    const long long entry = static_cast<long long>(delta.kv_row) * max_pages_per_row + delta.block;
    bool last = mine;
    for (int other = 1; other < 32; ++other) {
      const long long theirs = __shfl_sync(~0U, entry, other);
      if (other > lane && theirs == entry) last = false;
    }
    if (last) tables[entry] = delta.page;
    __syncwarp();
  }
}

}  // namespace

void CudaOpSet::update_block_tables(Stream& stream, const BlockTableArgs& args) {
  CONVOY_CHECK_OP(args.max_pages_per_row, >, 0);
  if (args.count == 0) return;
  cuda::launch(update_block_tables_kernel, {.grid = dim3(1), .block = dim3(32)}, handle_of(stream),
               args.deltas, args.count, args.tables, args.max_pages_per_row);
}

}  // namespace convoy
