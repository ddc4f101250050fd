// A stream that does everything on the calling thread, as a CPU device's does, and lets a test look
// on.
#pragma once

#include <cstring>
#include <functional>

#include "base/futex.h"
#include "kernels/device/device.h"

namespace convoy {

class InlineStream : public Stream {
 public:
  /// Called before every copy with its size.
  std::function<void(size_t)> before_copy;
  /// Called after every copy with its size.
  std::function<void(size_t)> after_copy;

  void copy(void* destination, const void* source, size_t bytes) override {
    if (before_copy) before_copy(bytes);
    std::memcpy(destination, source, bytes);
    if (after_copy) after_copy(bytes);
  }
  void fill_zero(void* destination, size_t bytes) override { std::memset(destination, 0, bytes); }
  void wait_value(uint32_t* word, uint32_t value) override {
    futex_wait_reached(word, value, kSpinIterations);
  }
  void write_value(uint32_t* word, uint32_t value) override { futex_store_and_wake(word, value); }
  void synchronize() override {}
  bool idle() override { return true; }

 private:
  static constexpr int kSpinIterations = 200;
};

}  // namespace convoy
