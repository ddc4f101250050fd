#include "kernels/cuda/driver_calls.h"

#include <cuda_runtime_api.h>

#include <string>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"

namespace convoy::cuda {
namespace {

template <typename Function>
void look_up(const char* name, unsigned version, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CONVOY_CUDA(
      cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result));
  CONVOY_CHECK(result == cudaDriverEntryPointSuccess,
               std::string("the CUDA driver has no ") + name);
  function = reinterpret_cast<Function>(address);
}

}  // namespace

const DriverCalls& driver_calls() {
  static const DriverCalls kCalls = [] {
    DriverCalls found;
    look_up("cuStreamWaitValue32", 11070, found.stream_wait_value);
    look_up("cuStreamWriteValue32", 11070, found.stream_write_value);
    look_up("cuMemGetAddressRange", 3020, found.address_range);
    look_up("cuGetErrorString", 6000, found.error_string);
    look_up("cuTensorMapEncodeTiled", 12000, found.tensor_map_encode);
    return found;
  }();
  return kCalls;
}

void check_driver(const char* file, int line, const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver_calls().error_string(result, &text);
  check_failed(file, line,
               std::string(call) + ": " + (text != nullptr ? text : "unknown error") +
                   " (CUresult " + std::to_string(static_cast<int>(result)) + ")");
}

}  // namespace convoy::cuda
