// The driver's functions that the runtime has no name for. They are asked for at run time, so that
// the programs start on machines without a driver.
#pragma once

#include <cudaTypedefs.h>

namespace convoy::cuda {

struct DriverCalls {
  PFN_cuStreamWaitValue32_v11070 stream_wait_value = nullptr;
  PFN_cuStreamWriteValue32_v11070 stream_write_value = nullptr;
  PFN_cuMemGetAddressRange_v3020 address_range = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
  PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encode = nullptr;
};

/// Looked up once, by the first call. Ends the process when the driver lacks one of them: a driver
/// that runs this toolkit's programs has them all.
const DriverCalls& driver_calls();

/// Ends the process unless `result` is success.
void check_driver(const char* file, int line, const char* call, CUresult result);

}  // namespace convoy::cuda

#define CONVOY_CUDA_DRIVER(call) ::convoy::cuda::check_driver(__FILE__, __LINE__, #call, (call))
