// The CUDA device that the tests run on.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_devices.h"

namespace convoy::test {

/// Opened once for the whole program: a context costs most of a second. Null where there is none.
inline Device* first_device() {
  static const std::unique_ptr<Device> kDevice =
      list_cuda_devices().devices.empty() ? nullptr : make_cuda_device({.id = "cuda:0"});
  return kDevice.get();
}

/// Skips every case on a machine without a CUDA device.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (first_device() == nullptr) GTEST_SKIP() << "no CUDA device: " << list_cuda_devices().error;
    first_device()->bind_thread();
  }
  Device& device() { return *first_device(); }
};

}  // namespace convoy::test
