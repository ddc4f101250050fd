// The CUDA devices of this machine. Plain types only, so that .cu and .cpp files can include it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace convoy {

struct CudaDeviceList {
  struct Entry {
    int ordinal = 0;           ///< as CUDA numbers them
    std::string name;          ///< "NVIDIA H200"
    std::string uuid;          ///< "GPU-…"
    std::string pci_id;        ///< "0000:3b:00.0", lower-case digits
    std::string architecture;  ///< "sm_90"
  };
  std::vector<Entry> devices;
  std::string error;  ///< why there are none: no driver, no device, …; empty otherwise
  bool has_driver = true;
};

/// Asks the CUDA runtime. The first CUDA call of the process; opens no context. Sets for this
/// process, as the runtime reads them once, CUDA_MODULE_LOADING=EAGER, whatever it was (a kernel
/// that is first loaded while a stream waits for another stage stalls), and
/// CUDA_DEVICE_MAX_CONNECTIONS=32 unless it is set.
CudaDeviceList list_cuda_devices();

/// Whether the driver lets the device `from` reach the memory of `to`; false for one and the same.
bool cuda_peer_access(const std::string& from_uuid, const std::string& to_uuid);

/// Whether this program has kernels that the calling thread's device can run:
/// cudaErrorNoKernelImageForDevice otherwise. Opens the device.
cudaError_t find_kernel_image();

}  // namespace convoy
