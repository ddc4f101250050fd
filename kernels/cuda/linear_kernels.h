// What serves OpSet::linear on CUDA devices. Which of them does is decided by shape, alignment and
// class, never by the number of rows:
//
//   generated, decode_takes()   linear_decode.cu: one pass over the weight per 64 columns
//   prompt, matmul_takes()      cuda_matmul.h: cuBLASLt with a pinned algorithm
//   everything else             linear_generic.cu: any shape, any alignment
//
// Plain C++ declarations, so that .cpp files can call what .cu files define.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ops/op_set.h"

namespace convoy::cuda {

/// x and the weight are read 16 bytes at a time.
bool decode_takes(const LinearArgs& args);
void decode_linear(cudaStream_t stream, const LinearArgs& args);

/// Every output is one chain of products over ascending k.
void generic_linear(cudaStream_t stream, const LinearArgs& args);

/// For trials: values[i] = a number in [-1, 1) that depends on (seed, first + i) alone.
void fill_trial(cudaStream_t stream, uint16_t* values, size_t count, size_t first, uint32_t seed);
/// Sets *differ to 1 when the two ranges differ. `bytes` is a multiple of 4.
void find_difference(cudaStream_t stream, const void* a, const void* b, size_t bytes,
                     uint32_t* differ);

}  // namespace convoy::cuda
