// Linear layers of any shape and alignment, both classes: x is the A operand of m16n8k16, the
// weight the B operand, and every output is one chain of mma over ascending k.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_out.cuh"
#include "kernels/cuda/mma.cuh"

namespace convoy::cuda {
namespace {

constexpr int kTile = 64;      // rows and outputs of a block
constexpr int kWarpTile = 32;  // of one of its 2 x 2 warps
constexpr int kThreads = 128;
constexpr int kSlab = 32;          // values of K at a time
constexpr int kPitch = kSlab + 8;  // eight rows of a matrix fragment meet no bank twice
constexpr int kStages = 3;

struct Operand {
  const __nv_bfloat16* base;
  ptrdiff_t row_stride;
  int rows;
};
struct GenericProblem {
  Operand x, weight;
  int in_features;
  LinearOut out;
};
using Slab = __nv_bfloat16[kTile][kPitch];

// Copies 64 rows x 32 values, zeros where there are none. 16-byte copies when `kAligned`, else
// value by value.
template <bool kAligned>
__device__ __forceinline__ void copy_slab(Slab& slab, const Operand& from, int first_row,
                                          int first_k, int k_total) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kSlab / 8; i += kThreads) {
    const int row = i / (kSlab / 8), k = i % (kSlab / 8) * 8;
    const bool inside = first_row + row < from.rows;
    const __nv_bfloat16* source =
        from.base + (inside ? (first_row + row) * from.row_stride + first_k + k : 0);
    if constexpr (kAligned) {
      copy_async_16(&slab[row][k], first_k + k < k_total ? source : from.base,
                    inside && first_k + k < k_total);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        slab[row][k + j] =
            inside && first_k + k + j < k_total ? source[j] : __float2bfloat16_rn(0.0F);
    }
  }
}

// The sums of one warp: 2 tiles of 16 rows x 4 tiles of 8 outputs.
using Sums = float[2][4][4];

__device__ __forceinline__ void multiply_slab(Sums& sums, const Slab& x, const Slab& weight,
                                              int warp_row, int warp_output, int lane) {
  // Lane i names row i % 8 of fragment i / 8 of the four that one load brings.
  const int row = lane % 8, fragment = lane / 8;
#pragma unroll
  for (int k = 0; k < kSlab; k += 16) {
    uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(a[i], &x[warp_row + i * 16 + fragment % 2 * 8 + row][k + fragment / 2 * 8]);
      load_matrices(b[i],
                    &weight[warp_output + i * 16 + fragment / 2 * 8 + row][k + fragment % 2 * 8]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        mma_bf16(sums[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
    }
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) generic_kernel(const GenericProblem p) {
  allow_dependents();
  __shared__ __align__(16) Slab x[kStages], weight[kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_output = static_cast<int>(blockIdx.x) * kTile;
  const int first_row = static_cast<int>(blockIdx.y) * kTile;
  const int warp_row = warp / 2 * kWarpTile, warp_output = warp % 2 * kWarpTile;
  const int slabs = (p.in_features + kSlab - 1) / kSlab;
  const auto copy = [&](int slab) {
    if (slab < slabs) {
      const int stage = slab % kStages, k = slab * kSlab;
      copy_slab<kAligned>(weight[stage], p.weight, first_output, k, p.in_features);
      copy_slab<kAligned>(x[stage], p.x, first_row, k, p.in_features);
    }
    commit_copies();
  };
  grid_dependency_wait();
  for (int slab = 0; slab < kStages - 1; ++slab) copy(slab);
  Sums sums = {};
  for (int slab = 0; slab < slabs; ++slab) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the slab is complete, and nobody reads the one before it any more
    copy(slab + kStages - 1);
    multiply_slab(sums, x[slab % kStages], weight[slab % kStages], warp_row, warp_output, lane);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int value = 0; value < 4; ++value) {
        const int row = first_row + warp_row + i * 16 + lane / 4 + value / 2 * 8;
        const int output = first_output + warp_output + j * 8 + lane % 4 * 2 + value % 2;
        if (row < p.x.rows && output < p.weight.rows) p.out.store(row, output, sums[i][j][value]);
      }
    }
  }
}

}  // namespace

void generic_linear(cudaStream_t stream, const LinearArgs& args) {
  constexpr int kMostRows = 65535 * kTile;  // of a grid
  const auto* weight = reinterpret_cast<const __nv_bfloat16*>(args.weight.data);
  const auto kernel = decode_takes(args) ? generic_kernel<true> : generic_kernel<false>;
  for (int first = 0; first < args.rows; first += kMostRows) {
    LinearArgs part = args;
    part.rows = std::min(args.rows - first, kMostRows);
    part.x = activations_at(args.x, first * args.x_row_stride, 2);
    part.out = activations_at(args.out, first * args.out_row_stride, args.f32_out ? 4 : 2);
    const GenericProblem problem = {
        {static_cast<const __nv_bfloat16*>(part.x), args.x_row_stride, part.rows},
        {weight, args.weight.in_features, args.weight.out_features},
        args.weight.in_features,
        LinearOut(part)};
    const LaunchShape shape = {
        dim3(static_cast<unsigned>((args.weight.out_features + kTile - 1) / kTile),
             static_cast<unsigned>((part.rows + kTile - 1) / kTile)),
        dim3(kThreads)};
    launch(kernel, shape, stream, problem);
  }
}

}  // namespace convoy::cuda
