#include "kernels/draw/score_loops.h"

#include <algorithm>

#include "kernels/ops/gumbel.h"

namespace convoy {
namespace {

#define CONVOY_SCORE_BODY [[gnu::always_inline]] inline

CONVOY_SCORE_BODY void weights_body(const float* __restrict logits, int count, LogitScale scale,
                                    float* __restrict out) {
  for (int i = 0; i < count; ++i) {
    out[i] = draw::exp_weight(draw::scaled_logit(logits[i], scale.largest, scale.temperature));
  }
}

CONVOY_SCORE_BODY void noisy_body(const float* __restrict logits, const int32_t* __restrict ids,
                                  int count, LogitScale scale, NoiseKey key,
                                  float* __restrict out) {
  for (int i = 0; i < count; ++i) {
    out[i] = draw::add(draw::scaled_logit(logits[i], scale.largest, scale.temperature),
                       draw::gumbel_noise(key.seed, key.token_index, ids[i]));
  }
}

void portable_weights(const float* logits, int count, LogitScale scale, float* out) {
  weights_body(logits, count, scale, out);
}
void portable_noisy(const float* logits, const int32_t* ids, int count, LogitScale scale,
                    NoiseKey key, float* out) {
  noisy_body(logits, ids, count, scale, key, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void avx2_weights(const float* logits, int count, LogitScale scale,
                                              float* out) {
  weights_body(logits, count, scale, out);
}
[[gnu::target("avx2,fma")]] void avx2_noisy(const float* logits, const int32_t* ids, int count,
                                            LogitScale scale, NoiseKey key, float* out) {
  noisy_body(logits, ids, count, scale, key, out);
}
#endif

}  // namespace

const ScoreLoops& portable_score_loops() {
  static constexpr ScoreLoops kLoops = {portable_weights, portable_noisy};
  return kLoops;
}

const ScoreLoops& score_loops() {
#if defined(__x86_64__)
  static constexpr ScoreLoops kAvx2 = {avx2_weights, avx2_noisy};
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return kAvx2;
#endif
  return portable_score_loops();
}

uint64_t sum_weight_mass(const float* logits, int count, LogitScale scale) {
  float block[kScoreBlock];
  uint64_t mass = 0;
  for (int first = 0; first < count; first += kScoreBlock) {
    const int size = std::min(kScoreBlock, count - first);
    score_loops().weights(logits + first, size, scale, block);
    for (int i = 0; i < size; ++i) mass += draw::weight_mass(block[i]);
  }
  return mass;
}

}  // namespace convoy
