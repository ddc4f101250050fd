// What a test sends as transfer `n` of a link: both ends compute it, so that every word can be
// checked.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops/step.h"

namespace convoy {

/// Mostly 0 to 4 KiB; one in 500 is as large as the link allows, for the pieces, but for a few
/// words.
class LinkPattern {
 public:
  LinkPattern(uint32_t transfer, size_t payload_bytes) : seed_(transfer * 2654435761U) {
    words_ = transfer % 500 == 499 ? payload_bytes / 4 - transfer / 500 % 7
                                   : std::min(payload_bytes / 4, size_t{seed_ >> 22});
    for (uint32_t i = 0; i < kMaxLanes; ++i) live_[i] = seed_ ^ i;
  }

  size_t bytes() const { return words_ * 4; }
  uint32_t columns() const { return seed_ % 97; }
  std::span<const uint32_t> live() const { return {live_.data(), seed_ % (kMaxLanes + 1)}; }

  void fill(uint32_t* words) const {
    for (size_t i = 0; i < words_; ++i) words[i] = word(i);
  }
  uint32_t wrong_words(const uint32_t* words) const {
    uint32_t wrong = 0;
    for (size_t i = 0; i < words_; ++i) wrong += words[i] != word(i);
    return wrong;
  }
  uint32_t wrong_live(const uint32_t* words) const {
    uint32_t wrong = 0;
    for (size_t i = 0; i < live().size(); ++i) wrong += words[i] != live_[i];
    return wrong;
  }

 private:
  uint32_t word(size_t i) const { return seed_ + static_cast<uint32_t>(i) * 40503U; }

  uint32_t seed_;
  size_t words_ = 0;
  std::array<uint32_t, kMaxLanes> live_{};
};

}  // namespace convoy
