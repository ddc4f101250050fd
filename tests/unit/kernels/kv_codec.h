// What keys and values should look like in the cache, and what attention reads there, found by
// searching all numbers of a format. Independent of kernels/ on purpose: layouts and roundings are
// written anew.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/ops/kv_dtype.h"
#include "tests/unit/kernels/device_array.h"

namespace convoy::test {

/// What a plane holds where nothing was stored: NaN as f32, bf16, fp16 and e4m3, so that one value
/// or scale too many shows.
inline constexpr uint8_t kPoison = 0xFF;

/// A format's numbers from 0 up, in the order of their bits: `exponents` fields, each with 2^bits
/// numbers, the first of them subnormal.
inline std::vector<double> numbers_of_format(int exponents, int bits, int bias) {
  std::vector<double> numbers;
  const int count = 1 << bits;
  for (int exponent = 0; exponent < exponents; ++exponent) {
    for (int i = 0; i < count; ++i) {
      const double significand = exponent == 0 ? i : count + i;
      numbers.push_back(std::ldexp(significand, std::max(exponent, 1) - bias - bits));
    }
  }
  return numbers;
}
/// Finite fp16: 0 to 65504.
inline const std::vector<double>& fp16_numbers() {
  static const auto kNumbers = numbers_of_format(31, 10, 15);
  return kNumbers;
}
/// Finite e4m3: 0 to 448; the next one would be NaN.
inline const std::vector<double>& e4m3_numbers() {
  static const auto kNumbers = [] {
    auto numbers = numbers_of_format(16, 3, 7);
    numbers.pop_back();
    return numbers;
  }();
  return kNumbers;
}

/// The bits of the number nearest to x >= 0, the even one of two, the largest beyond it.
inline unsigned nearest_bits(const std::vector<double>& numbers, double x) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), x);
  if (above == numbers.end()) return static_cast<unsigned>(numbers.size() - 1);
  const auto bits = static_cast<unsigned>(above - numbers.begin());
  if (bits == 0) return 0;
  const double up = *above - x;
  const double down = x - numbers[bits - 1];
  return down < up || (down == up && bits % 2 == 1) ? bits - 1 : bits;
}

/// One plane of the cache: the bytes that writers should leave, and the values that they stand for.
class KvPlaneImage {
 public:
  KvPlaneImage(KvDtype dtype, int pages, int kv_heads, int head_dim)
      : dtype_(dtype),
        kv_heads_(static_cast<size_t>(kv_heads)),
        dim_(static_cast<size_t>(head_dim)),
        groups_(dtype == KvDtype::int8 ? (dim_ + 63) / 64 : 0),
        value_bytes_(dtype == KvDtype::f32    ? 4
                     : dtype == KvDtype::bf16 ? 2
                                              : 1),
        bytes_(static_cast<size_t>(pages) * kv_heads_ * block_bytes(), kPoison) {}

  /// [pages, kv_heads] blocks.
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  /// What a device has left there, instead.
  void set_bytes(std::vector<uint8_t> bytes) { bytes_ = std::move(bytes); }

  /// Stores x [head_dim] as token `slot` of a page's head.
  void store(int page, int head, int slot, const float* x) {
    uint8_t* const values = &bytes_[value_at(page, head, slot)];
    for (size_t d = 0; d < dim_ && groups_ == 0; ++d) store_value(values + d * value_bytes_, x[d]);
    for (size_t group = 0; group < groups_; ++group) {
      const size_t first = group * 64;
      const uint16_t scale =
          store_group(values + first, x + first, std::min(dim_ - first, size_t{64}));
      std::memcpy(&bytes_[scale_at(page, head, slot) + 2 * group], &scale, sizeof(scale));
    }
  }

  /// Takes a token's bytes from another plane of the same shape.
  void copy(const KvPlaneImage& from, int page, int head, int slot) {
    std::copy_n(&from.bytes_[value_at(page, head, slot)], dim_ * value_bytes_,
                &bytes_[value_at(page, head, slot)]);
    if (groups_ == 0) return;
    std::copy_n(&from.bytes_[scale_at(page, head, slot)], 2 * groups_,
                &bytes_[scale_at(page, head, slot)]);
  }

  /// The values [head_dim] as attention reads them: rounded to bf16 unless the device is f32.
  std::vector<float> read(int page, int head, int slot, bool bf16) const {
    const uint8_t* const values = &bytes_[value_at(page, head, slot)];
    std::vector<float> x;
    for (size_t d = 0; d < dim_; ++d) {
      const float value = read_value(values + d * value_bytes_);
      const float exact = groups_ == 0 ? value : value * scale_of(page, head, slot, d / 64);
      x.push_back(bf16 && !std::isnan(exact) ? from_bf16(to_bf16(exact)) : exact);
    }
    return x;
  }
  float scale_of(int page, int head, int slot, size_t group) const {
    uint16_t bits = 0;
    std::memcpy(&bits, &bytes_[scale_at(page, head, slot) + 2 * group], sizeof(bits));
    return bits < fp16_numbers().size() ? static_cast<float>(fp16_numbers()[bits]) : kNan;
  }
  size_t groups() const { return groups_; }

 private:
  size_t value_at(int page, int head, int slot) const {
    return block_at(page, head) + static_cast<size_t>(slot) * dim_ * value_bytes_;
  }
  size_t block_bytes() const { return 64 * (dim_ * value_bytes_ + 2 * groups_); }
  size_t block_at(int page, int head) const {
    return (static_cast<size_t>(page) * kv_heads_ + static_cast<size_t>(head)) * block_bytes();
  }
  size_t scale_at(int page, int head, int slot) const {
    return block_at(page, head) + 64 * dim_ + static_cast<size_t>(slot) * 2 * groups_;
  }

  void store_value(uint8_t* to, float x) const {
    if (dtype_ == KvDtype::f32) {
      std::memcpy(to, &x, sizeof(x));
    } else if (dtype_ == KvDtype::bf16) {
      const uint16_t bits = std::isnan(x) ? uint16_t{0x7FC0} : to_bf16(x);
      std::memcpy(to, &bits, sizeof(bits));
    } else {
      const unsigned bits = std::isnan(x)
                                ? 0x7FU
                                : nearest_bits(e4m3_numbers(), std::abs(static_cast<double>(x))) |
                                      (std::signbit(x) ? 0x80U : 0U);
      *to = static_cast<uint8_t>(bits);
    }
  }

  static uint16_t store_group(uint8_t* to, const float* x, size_t count) {
    float largest = 0;
    for (size_t i = 0; i < count; ++i) {
      if (!std::isnan(x[i])) largest = std::max(largest, std::abs(x[i]));
    }
    const unsigned bits = nearest_bits(fp16_numbers(), static_cast<double>(largest / 127.0F));
    const auto scale = static_cast<float>(fp16_numbers()[bits]);
    for (size_t i = 0; i < count; ++i) {
      const float q = bits == 0 || std::isnan(x[i]) ? 0.0F : std::nearbyint(x[i] / scale);
      to[i] = static_cast<uint8_t>(static_cast<int>(std::clamp(q, -127.0F, 127.0F)));
    }
    return static_cast<uint16_t>(bits);
  }

  float read_value(const uint8_t* from) const {
    if (dtype_ == KvDtype::f32) {
      float x = 0;
      std::memcpy(&x, from, sizeof(x));
      return x;
    }
    if (dtype_ == KvDtype::bf16) {
      uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof(bits));
      return from_bf16(bits);
    }
    if (dtype_ == KvDtype::int8) return static_cast<float>(static_cast<int8_t>(*from));
    const unsigned magnitude = *from & 0x7FU;
    if (magnitude == 0x7FU) return kNan;
    const auto value = static_cast<float>(e4m3_numbers()[magnitude]);
    return (*from & 0x80U) != 0 ? -value : value;
  }

  KvDtype dtype_;
  size_t kv_heads_, dim_, groups_, value_bytes_;
  std::vector<uint8_t> bytes_;
};

/// tokens [count, kv_heads, head_dim] as attention reads them when they were stored as `dtype`.
inline std::vector<float> as_stored(Device& device, KvDtype dtype, const std::vector<float>& tokens,
                                    int kv_heads, int head_dim) {
  const size_t row = static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  KvPlaneImage slot(dtype, 1, kv_heads, head_dim);
  std::vector<float> read;
  for (size_t at = 0; at < tokens.size(); at += row) {
    for (int head = 0; head < kv_heads; ++head) {
      slot.store(0, head, 0, &tokens[at + static_cast<size_t>(head * head_dim)]);
      const auto values = slot.read(0, head, 0, has_bf16_activations(device));
      read.insert(read.end(), values.begin(), values.end());
    }
  }
  return read;
}

/// The quantised dtypes that the device has.
inline std::vector<KvDtype> quantised_dtypes(Device& device) {
  std::vector<KvDtype> dtypes;
  for (const KvDtype dtype : {KvDtype::int8, KvDtype::fp8}) {
    if (has_kv_dtype(device.kind(), dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

}  // namespace convoy::test
