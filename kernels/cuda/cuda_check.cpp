#include "kernels/cuda/cuda_check.h"

#include "base/check.h"

namespace convoy::cuda {

std::string error_text(cudaError_t error) {
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

void call_failed(const char* file, int line, const char* call, cudaError_t error) {
  check_failed(file, line, std::string(call) + ": " + error_text(error));
}

}  // namespace convoy::cuda
