#include <cmath>

#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/random_values.h"

namespace convoy {
namespace {

constexpr int kThreads = 256;
constexpr int kValues = 2 * draw::kRandomGroup;  // of one thread

struct Fill {
  void* out;
  int64_t count;
  uint64_t seed, first_group;
  float centre, spread;
};

template <bool kF32, bool kVectorised>
__global__ void __launch_bounds__(kThreads) fill_random_kernel(const Fill fill) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t at = vector * kValues;
  if (at >= fill.count) return;
  float values[kValues];
#pragma unroll
  for (int g = 0; g < kValues / draw::kRandomGroup; ++g) {
    float group[draw::kRandomGroup];
    draw::random_values(fill.seed, fill.first_group + static_cast<uint64_t>(2 * vector + g),
                        fill.centre, fill.spread, group);
#pragma unroll
    for (int i = 0; i < draw::kRandomGroup; ++i) values[g * draw::kRandomGroup + i] = group[i];
  }
  const int count = static_cast<int>(min(static_cast<int64_t>(kValues), fill.count - at));
  if (kF32) {
    float* const out = static_cast<float*>(fill.out) + at;
    for (int i = 0; i < count; ++i) out[i] = values[i];
  } else {
    cuda::store_vector<kVectorised>(static_cast<__nv_bfloat16*>(fill.out) + at, 0, count, values);
  }
}

}  // namespace

void CudaOpSet::fill_random(Stream& stream, const FillRandomArgs& args) {
  CONVOY_CHECK_OP(args.count, >=, 0);
  CONVOY_CHECK_OP(args.first % draw::kRandomGroup, ==, 0U);
  CONVOY_CHECK(std::isfinite(args.centre) && std::isfinite(args.spread), "random values of NaN");
  if (args.count == 0) return;
  const Fill fill{args.out,    args.count, args.seed, args.first / draw::kRandomGroup,
                  args.centre, args.spread};
  const int64_t vectors = (args.count + kValues - 1) / kValues;
  const dim3 grid(static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  const auto kernel = args.f32_out                          ? fill_random_kernel<true, false>
                      : cuda::vectorised(args.out, kValues) ? fill_random_kernel<false, true>
                                                            : fill_random_kernel<false, false>;
  cuda::launch(kernel, {.grid = grid, .block = dim3(kThreads)}, handle_of(stream), fill);
}

}  // namespace convoy
