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
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"

namespace convoy::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
/// What outputs hold before an operation: a value no test expects.
inline constexpr float kUntouched = -12352.0F;

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

/// Whether the device stores activations as bf16 (kernels/ops/op_set.h).
inline bool has_bf16_activations(Device& device) {
  return device.ops().activation_bytes() == sizeof(uint16_t);
}

/// `values` as the device stores activations: what an oracle must start from.
inline std::vector<float> as_activations(Device& device, std::vector<float> values) {
  if (!has_bf16_activations(device)) return values;
  for (float& value : values) {
    if (!std::isnan(value)) value = from_bf16(to_bf16(value));
  }
  return values;
}

/// Activations between guard bytes, f32 to the test whatever the device stores.
class ActivationArray {
 public:
  ActivationArray(Device& device, const std::vector<float>& values) {
    if (!has_bf16_activations(device)) {
      f32_.emplace(device, values);
      return;
    }
    std::vector<uint16_t> rounded;
    for (const float value : values)
      rounded.push_back(std::isnan(value) ? uint16_t{0x7FC0} : to_bf16(value));
    bf16_.emplace(device, rounded);
  }
  void* data() const {
    return f32_ ? static_cast<void*>(f32_->data()) : static_cast<void*>(bf16_->data());
  }
  std::vector<float> read() const {
    if (f32_) return f32_->read();
    std::vector<float> values;
    for (const uint16_t value : bf16_->read()) values.push_back(from_bf16(value));
    return values;
  }

 private:
  std::optional<DeviceArray<float>> f32_;
  std::optional<DeviceArray<uint16_t>> bf16_;
};

/// Output activations of `size` values that nothing has written yet.
inline ActivationArray output_activations(Device& device, size_t size) {
  return ActivationArray(device, std::vector<float>(size, kUntouched));
}

/// What a test allows of one operation: `f32` on devices with f32 activations; where they are bf16,
/// the rounding of a stored result (half a unit in the last place of 8 bits, 2^-8) plus `bf16` for
/// what is rounded on the way.
inline double tolerance(Device& device, double f32, double bf16 = 0) {
  return has_bf16_activations(device) ? 0x1p-8 + f32 + bf16 : f32;
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
  const auto bits = [](const T& value) { return static_cast<const void*>(&value); };
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(bits(got[i]), bits(want[i]), sizeof(T)), 0)
        << what << ": value " << i << " is " << got[i] << ", not " << want[i];
  }
}

}  // namespace convoy::test
