// A CUDA stream that does not synchronise with the legacy default stream.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/device.h"

namespace convoy {

class CudaStream final : public Stream {
 public:
  /// On the device that the calling thread is bound to.
  CudaStream();
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void copy(void* destination, const void* source, size_t bytes) override;
  void fill_zero(void* destination, size_t bytes) override;
  void wait_value(uint32_t* word, uint32_t value) override;
  void write_value(uint32_t* word, uint32_t value) override;
  void copy_then_write(void* destination, const void* source, size_t bytes, uint32_t* word,
                       uint32_t value) override;
  void synchronize() override;
  bool idle() override;

  cudaStream_t handle() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The handle of a stream that a CUDA device made.
inline cudaStream_t handle_of(Stream& stream) {
  return static_cast<CudaStream&>(stream).handle();
}

}  // namespace convoy
