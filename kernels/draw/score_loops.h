// The loops over a whole vocabulary that compute exponentials and noise, compiled for several
// instruction sets with equal bits.
#pragma once

#include <cstdint>

namespace convoy {

/// How logits become scaled logits: see draw::scaled_logit.
struct LogitScale {
  float largest = 0.0F;
  float temperature = 1.0F;
};

/// The draw that noise belongs to.
struct NoiseKey {
  uint64_t seed = 0;
  uint64_t token_index = 0;
};

struct ScoreLoops {
  /// out[i] = exp_weight(scaled logit i). Arrays do not overlap.
  void (*weights)(const float* logits, int count, LogitScale scale, float* out);
  /// out[i] = scaled logit i + gumbel_noise of ids[i]; NaN stays NaN.
  void (*noisy)(const float* logits, const int32_t* ids, int count, LogitScale scale, NoiseKey key,
                float* out);
};

/// For any processor. Slow where fused multiply-adds are not in hardware.
const ScoreLoops& portable_score_loops();
/// The fastest that this processor runs.
const ScoreLoops& score_loops();

/// Values of a vocabulary that go through the loops at once.
inline constexpr int kScoreBlock = 1024;

/// Sum of weight_mass(exp_weight(scaled logit)) over `count` logits.
uint64_t sum_weight_mass(const float* logits, int count, LogitScale scale);

}  // namespace convoy
