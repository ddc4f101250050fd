// Errors of CUDA calls. Plain C++ that .cu and .cpp files can include.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace convoy::cuda {

/// Ends the process with the call, CUDA's name of the error and its text: an error after start-up
/// means that the device or this program is broken.
[[noreturn]] void call_failed(const char* file, int line, const char* call, cudaError_t error);

/// "out of memory (cudaErrorMemoryAllocation)"
std::string error_text(cudaError_t error);

}  // namespace convoy::cuda

#define CONVOY_CUDA(call)                                                        \
  do {                                                                           \
    const cudaError_t convoy_cuda_error = (call);                                \
    if (convoy_cuda_error != cudaSuccess)                                        \
      ::convoy::cuda::call_failed(__FILE__, __LINE__, #call, convoy_cuda_error); \
  } while (false)
