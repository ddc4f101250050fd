// The CUDA devices of this machine. Plain types only, so that .cu and .cpp files can include it.
#pragma once

#include <string>
#include <vector>

namespace convoy {

struct CudaDeviceList {
  struct Entry {
    int ordinal = 0;           ///< as CUDA numbers them
    std::string name;          ///< "NVIDIA H200"
    std::string uuid;          ///< "GPU-…"
    std::string pci_id;        ///< "0000:3b:00.0"
    std::string architecture;  ///< "sm_90"
  };
  std::vector<Entry> devices;
  std::string error;  ///< why there are none: no driver, no device, …; empty otherwise
};

/// Asks the CUDA runtime. The first CUDA call of the process; opens no context.
CudaDeviceList list_cuda_devices();

}  // namespace convoy
