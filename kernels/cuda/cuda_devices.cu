#include "kernels/cuda/cuda_devices.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

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

std::string pci_text(int ordinal) {
  char text[16] = {};
  cudaDeviceGetPCIBusId(text, sizeof(text), ordinal);
  std::string id = text;
  std::transform(id.begin(), id.end(), id.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return id;
}

__global__ void image_probe() {}

}  // namespace

CudaDeviceList list_cuda_devices() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  CudaDeviceList list;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    list.error = cudaGetErrorString(error);
    // The runtime says of a missing driver what it says of an old one, but that it has version 0.
    int driver_version = 0;
    list.has_driver = error != cudaErrorInsufficientDriver ||
                      (cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version != 0);
    return list;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
        error != cudaSuccess) {
      list.error = cudaGetErrorString(error);
      return list;
    }
    list.devices.push_back(
        {ordinal, properties.name, uuid_text(properties.uuid), pci_text(ordinal),
         "sm_" + std::to_string(properties.major) + std::to_string(properties.minor)});
  }
  return list;
}

bool cuda_peer_access(const std::string& from_uuid, const std::string& to_uuid) {
  int from = -1;
  int to = -1;
  for (const auto& device : list_cuda_devices().devices) {
    if (device.uuid == from_uuid) from = device.ordinal;
    if (device.uuid == to_uuid) to = device.ordinal;
  }
  int allowed = 0;
  if (from < 0 || to < 0 || from == to) return false;
  return cudaDeviceCanAccessPeer(&allowed, from, to) == cudaSuccess && allowed != 0;
}

cudaError_t find_kernel_image() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, image_probe);
  if (error != cudaSuccess) cudaGetLastError();  // handled by the caller
  return error;
}

}  // namespace convoy
