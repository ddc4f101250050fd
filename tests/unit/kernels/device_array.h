// What the kernel tests share: arrays on a device between guard bytes, bf16, random values and
// comparisons. Nothing here touches device memory directly, so that the same test bodies serve
// every kind of device.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"

namespace convoy::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
/// What outputs hold before an operation: a value no test expects.
inline constexpr float kUntouched = -12345.75F;

/// Values on a device between two strips of guard bytes. read() fails the test when a guard has
/// changed.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device& device, std::vector<T> values)
      : size_(values.size()),
        stream_(device.make_stream()),
        buffer_(device.allocate(bytes() + 2 * kGuard, "test")) {
    std::vector<unsigned char> image(bytes() + 2 * kGuard, kPattern);
    if (size_ > 0) std::memcpy(image.data() + kGuard, values.data(), bytes());
    stream_->copy(buffer_.data(), image.data(), image.size());
    stream_->synchronize();
  }

  T* data() const { return reinterpret_cast<T*>(buffer_.template as<unsigned char>() + kGuard); }

  std::vector<T> read() const {
    std::vector<unsigned char> image(bytes() + 2 * kGuard);
    stream_->copy(image.data(), buffer_.data(), image.size());
    stream_->synchronize();
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(image[i], kPattern)
          << "guard byte " << kGuard - i << " before the array was written";
      EXPECT_EQ(image[kGuard + bytes() + i], kPattern)
          << "guard byte " << i << " after the array was written";
      if (testing::Test::HasFailure()) break;
    }
    std::vector<T> values(size_);
    if (size_ > 0) std::memcpy(values.data(), image.data() + kGuard, bytes());
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kPattern = 0xA5;
  size_t bytes() const { return size_ * sizeof(T); }

  size_t size_;
  std::unique_ptr<Stream> stream_;
  Buffer buffer_;
};

/// An output of `size` values that nothing has written yet.
inline DeviceArray<float> output_array(Device& device, size_t size) {
  return DeviceArray<float>(device, std::vector<float>(size, kUntouched));
}

inline uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
inline float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

/// The same numbers on every machine.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 8) / 16777216.0F;
  }
  int integer(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<uint32_t>(high - low + 1));
  }
  std::vector<float> floats(size_t count, float low = -1.0F, float high = 1.0F) {
    std::vector<float> values(count);
    for (float& value : values) value = uniform(low, high);
    return values;
  }
  std::vector<uint16_t> bf16s(size_t count, float scale = 1.0F) {
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = to_bf16(uniform(-scale, scale));
    return values;
  }

 private:
  std::mt19937 engine_;
};

/// |got - want| <= tolerance * (|want| + scale) for every value.
inline void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                         double tolerance, double scale, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    ASSERT_LE(error, tolerance * (std::abs(want[i]) + scale))  // NaN fails too
        << what << ": value " << i << " is " << got[i] << ", not " << want[i];
  }
}

/// Every value has the same bits.
template <typename T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want,
                      const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0)
        << what << ": value " << i << " is " << got[i] << ", not " << want[i];
  }
}

}  // namespace convoy::test
