// A stream of the CPU device: every call does its work on the calling thread before it returns.
#pragma once

#include <atomic>

#include "kernels/device/device.h"

namespace convoy {

class CpuStream final : public Stream {
 public:
  /// `wait_spins` belongs to the device, which outlives its streams.
  explicit CpuStream(const std::atomic<int>& wait_spins) : wait_spins_(wait_spins) {}

  void copy(void* destination, const void* source, size_t bytes) override;
  void fill_zero(void* destination, size_t bytes) override;
  void wait_value(uint32_t* word, uint32_t value) override;
  void write_value(uint32_t* word, uint32_t value) override;
  void synchronize() override {}
  bool idle() override { return true; }

 private:
  const std::atomic<int>& wait_spins_;
};

}  // namespace convoy
