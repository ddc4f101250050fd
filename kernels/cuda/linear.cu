// OpSet::linear and what belongs to it: which kernel serves, the packed form, warming up.
#include <cstddef>
#include <memory>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_matmul.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"

namespace convoy {
namespace {

constexpr size_t kWeightAlignment = 256;

// Numbers that look random, of an index.
__device__ __forceinline__ uint32_t mixed(uint64_t index, uint32_t seed) {
  uint64_t h = (index + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xD1B54A32D192ED03ULL;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ULL;
  return static_cast<uint32_t>((h ^ (h >> 32)) >> 16);
}

__global__ void random_kernel(__nv_bfloat16* values, size_t count, size_t first, uint32_t seed) {
  cuda::grid_dependency_wait();
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float value = static_cast<float>(mixed(first + i, seed) >> 8) / 8388608.0F - 1.0F;
    values[i] = __float2bfloat16_rn(value);
  }
}

__global__ void difference_kernel(const uint32_t* a, const uint32_t* b, size_t count,
                                  uint32_t* differ) {
  cuda::grid_dependency_wait();
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i] != b[i]) *differ = 1;
  }
}

constexpr cuda::LaunchShape kTrialLaunch = {dim3(1024), dim3(256)};

}  // namespace

void cuda::fill_trial(cudaStream_t stream, uint16_t* values, size_t count, size_t first,
                      uint32_t seed) {
  launch(random_kernel, kTrialLaunch, stream, reinterpret_cast<__nv_bfloat16*>(values), count,
         first, seed);
}

void cuda::find_difference(cudaStream_t stream, const void* a, const void* b, size_t bytes,
                           uint32_t* differ) {
  launch(difference_kernel, kTrialLaunch, stream, static_cast<const uint32_t*>(a),
         static_cast<const uint32_t*>(b), bytes / sizeof(uint32_t), differ);
}

CudaOpSet::CudaOpSet() = default;
CudaOpSet::~CudaOpSet() = default;

size_t CudaOpSet::packed_linear_bytes(int out_features, int in_features) const {
  const size_t bytes =
      static_cast<size_t>(out_features) * static_cast<size_t>(in_features) * sizeof(uint16_t);
  return (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
}

void CudaOpSet::pack_linear(const void* source, int rows, int first_row, int out_features,
                            int in_features, void* destination) {
  CONVOY_CHECK_OP(first_row, >=, 0);
  CONVOY_CHECK_OP(first_row + rows, <=, out_features);
  const size_t row_bytes = static_cast<size_t>(in_features) * sizeof(uint16_t);
  auto* to = static_cast<std::byte*>(destination) + static_cast<size_t>(first_row) * row_bytes;
  // A copy from pageable memory may return before the device has it.
  CONVOY_CUDA(cudaMemcpyAsync(to, source, static_cast<size_t>(rows) * row_bytes,
                              cudaMemcpyHostToDevice, cudaStreamPerThread));
  CONVOY_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

void CudaOpSet::linear(Stream& stream, const LinearArgs& args) {
  CONVOY_CHECK_OP(args.rows, >=, 0);
  CONVOY_CHECK_OP(args.weight.out_features, >=, 1);
  CONVOY_CHECK_OP(args.weight.in_features, >=, 1);
  CONVOY_CHECK(!(args.accumulate && args.f32_out), "accumulate needs an output of activations");
  if (args.rows == 0) return;
  const cudaStream_t handle = handle_of(stream);
  if (args.position_class == PositionClass::generated) {
    if (!cuda::decode_takes(args)) return cuda::generic_linear(handle, args);
    cuda::decode_linear(handle, args);
    return;
  }
  if (CudaMatmul::takes(args)) {
    if (!matmul_) matmul_ = std::make_unique<CudaMatmul>();
    if (matmul_->run(handle, args)) return;
  }
  cuda::generic_linear(handle, args);
}

void CudaOpSet::warm_up(Stream& stream, const WarmUpShape* shapes, int count) {
  for (int i = 0; i < count; ++i) {
    if (!shapes[i].prompts) continue;
    if (!matmul_) matmul_ = std::make_unique<CudaMatmul>();
    matmul_->prepare(shapes[i].out_features, shapes[i].in_features, shapes[i].rows);
  }
  stream.synchronize();
}

}  // namespace convoy
