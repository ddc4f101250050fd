#include "kernels/cuda/cuda_stream.h"

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/cuda/driver_calls.h"
#include "kernels/cuda/host_copy.h"

namespace convoy {
namespace {

CUdeviceptr device_address(const uint32_t* word) {
  // Devices that see registered memory at another address are refused when they are opened.
  return reinterpret_cast<CUdeviceptr>(word);
}

// A copy engine and the kernels around it wait for each other through the card's scheduler, which
// costs more than a small copy itself; where two processes share the card it costs a turn of
// theirs.
constexpr size_t kBusKernelBytes = size_t{64} << 10;
// To another card's memory a copy engine takes as long for 256 KiB as for a word (measured on a
// pair of H200: 25 us).
constexpr size_t kDeviceKernelBytes = size_t{256} << 10;

cudaMemoryType memory_type(const void* address) {
  cudaPointerAttributes attributes{};
  CONVOY_CUDA(cudaPointerGetAttributes(&attributes, address));
  return attributes.type;
}

// Pageable memory is no place for kernels.
bool is_kernel_copy(const void* destination, const void* source, size_t bytes) {
  const cudaMemoryType to = memory_type(destination);
  const cudaMemoryType from = memory_type(source);
  // CUDA copies from host memory to host memory on the calling thread, after everything enqueued
  // before: a stream that waits for a peer would stop the thread that has to serve the peer.
  if (to == cudaMemoryTypeHost && from == cudaMemoryTypeHost) return true;
  const bool crosses_the_bus = (to == cudaMemoryTypeHost && from == cudaMemoryTypeDevice) ||
                               (to == cudaMemoryTypeDevice && from == cudaMemoryTypeHost);
  if (crosses_the_bus) return bytes <= kBusKernelBytes;
  return to == cudaMemoryTypeDevice && from == cudaMemoryTypeDevice && bytes <= kDeviceKernelBytes;
}

}  // namespace

CudaStream::CudaStream() {
  CONVOY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  CONVOY_CUDA_RELEASE(cudaStreamDestroy(stream_));
}

void CudaStream::copy(void* destination, const void* source, size_t bytes) {
  if (bytes == 0) return;
  if (is_kernel_copy(destination, source, bytes)) {
    cuda::copy_with_kernel(stream_, destination, source, bytes);
    return;
  }
  CONVOY_CUDA(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_));
}

void CudaStream::fill_zero(void* destination, size_t bytes) {
  if (bytes > 0) CONVOY_CUDA(cudaMemsetAsync(destination, 0, bytes, stream_));
}

void CudaStream::wait_value(uint32_t* word, uint32_t value) {
  CONVOY_CUDA_DRIVER(cuda::driver_calls().stream_wait_value(stream_, device_address(word), value,
                                                            CU_STREAM_WAIT_VALUE_GEQ));
}

void CudaStream::write_value(uint32_t* word, uint32_t value) {
  // Default flags: the write fences everything before it, for the host and for other devices.
  CONVOY_CUDA_DRIVER(cuda::driver_calls().stream_write_value(stream_, device_address(word), value,
                                                             CU_STREAM_WRITE_VALUE_DEFAULT));
}

void CudaStream::copy_then_write(void* destination, const void* source, size_t bytes,
                                 uint32_t* word, uint32_t value) {
  if (bytes > 0 && bytes <= cuda::kMostRungBytes && is_kernel_copy(destination, source, bytes)) {
    cuda::copy_then_write(stream_, destination, source, bytes, word, value);
  } else {
    Stream::copy_then_write(destination, source, bytes, word, value);
  }
}

void CudaStream::synchronize() {
  CONVOY_CUDA(cudaStreamSynchronize(stream_));
}

bool CudaStream::idle() {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error != cudaErrorNotReady) CONVOY_CUDA(error);
  return error == cudaSuccess;
}

}  // namespace convoy
