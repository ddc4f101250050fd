#include <cuda_runtime_api.h>

#include <cstdio>

#include "kernels/cuda/cuda_devices.h"

namespace convoy {
namespace {

// The form nvidia-smi prints: GPU-8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

}  // namespace

CudaDeviceList list_cuda_devices() {
  CudaDeviceList list;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    list.error = cudaGetErrorString(error);
    return list;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
        error != cudaSuccess) {
      list.error = cudaGetErrorString(error);
      return list;
    }
    char pci_id[16] = {};
    cudaDeviceGetPCIBusId(pci_id, sizeof(pci_id), ordinal);
    list.devices.push_back(
        {ordinal, properties.name, uuid_text(properties.uuid), pci_id,
         "sm_" + std::to_string(properties.major) + std::to_string(properties.minor)});
  }
  return list;
}

}  // namespace convoy
