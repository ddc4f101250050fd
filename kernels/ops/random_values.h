// The values of OpSet::fill_random: the same bits on every processor and on CUDA devices.
#pragma once

#include <cstdint>

#include "kernels/ops/gumbel.h"

namespace convoy::draw {

/// Values come in groups of four: one Philox block.
inline constexpr int kRandomGroup = 4;

/// Values 4 * group .. 4 * group + 3 of the sequence `seed`: centre + spread * u with u uniform on
/// the multiples of 2^-23 in [-1, 1), rounded once. Counters with a last word of 1 belong to them.
CONVOY_DRAW void random_values(uint64_t seed, uint64_t group, float centre, float spread,
                               float (&values)[kRandomGroup]) {
  const PhiloxWords words =
      philox4x32_10({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0, 1}},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  for (int i = 0; i < kRandomGroup; ++i) {
    const auto steps = static_cast<int32_t>(words.word[i] >> 8) - (1 << 23);
    values[i] = fused_multiply_add(static_cast<float>(steps) * 0x1p-23F, spread, centre);
  }
}

}  // namespace convoy::draw
