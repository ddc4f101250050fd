#include "kernels/draw/token_draw.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/ops/gumbel.h"

namespace convoy {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Tokens that nearly always hold top_p of a language model's distribution.
constexpr size_t kUsualNucleus = 512;
/// What a sum of weight_mass has room for.
constexpr size_t kMaxVocab = 1 << 23;

// The id with the best noisy score so far, the lowest among equals. Blocks come in any order of
// ids.
class Winner {
 public:
  void challenge(const float* logits, const int32_t* ids, int count, LogitScale scale,
                 NoiseKey key) {
    float scores[kScoreBlock];
    score_loops().noisy(logits, ids, count, scale, key, scores);
    for (int i = 0; i < count; ++i) {
      if (scores[i] > score_ || (scores[i] == score_ && ids[i] < id_)) {
        score_ = scores[i];
        id_ = ids[i];
      }
    }
  }
  float score() const { return score_; }
  int32_t id() const {
    CONVOY_CHECK(id_ >= 0, "the largest logit has a finite score");
    return id_;
  }

 private:
  float score_ = -kInfinity;
  int32_t id_ = -1;
};

// Only ids that can still win get noise: with the largest noise there is, they must reach the score
// of `best`.
int32_t draw_from_all(std::span<const float> logits, int32_t best, LogitScale scale, NoiseKey key) {
  Winner winner;
  winner.challenge(&logits[static_cast<size_t>(best)], &best, 1, scale, key);
  // In double and with 0.1 to spare against the rounding of scores.
  const double reach = static_cast<double>(winner.score()) - draw::kLargestNoise - 0.1;
  const double exact_cutoff =
      static_cast<double>(scale.largest) + reach * static_cast<double>(scale.temperature);
  const auto cutoff = static_cast<float>(
      std::max(exact_cutoff, static_cast<double>(std::numeric_limits<float>::lowest())));
  const auto vocab = static_cast<int>(logits.size());
  float values[kScoreBlock];
  int32_t ids[kScoreBlock];
  for (int first = 0; first < vocab; first += kScoreBlock) {
    const int size = std::min(kScoreBlock, vocab - first);
    size_t count = 0;
    for (int i = 0; i < size; ++i) {
      const float logit = logits[static_cast<size_t>(first + i)];
      values[count] = logit;
      ids[count] = first + i;
      count += static_cast<size_t>(logit >= cutoff);
    }
    winner.challenge(values, ids, static_cast<int>(count), scale, key);
  }
  return winner.id();
}

}  // namespace

void TokenDraw::reserve(const DrawRule& rule, size_t vocab) {
  if (rule.greedy()) return;
  kept_.reserve(rule.top_k > 0 ? top_capacity(vocab, rule.top_k) : vocab);
}

int32_t TokenDraw::draw(std::span<const float> logits, const DrawRule& rule) {
  CONVOY_CHECK_OP(logits.size(), <=, kMaxVocab);
  const int32_t best = best_id(logits);
  if (best < 0 || rule.greedy()) return best;
  const LogitScale scale{.largest = logits[static_cast<size_t>(best)],
                         .temperature = rule.temperature};
  const NoiseKey key{.seed = rule.seed, .token_index = rule.token_index};
  if (rule.top_k == 0 && rule.top_p == 1.0 && rule.min_p == 0.0F)
    return draw_from_all(logits, best, scale, key);
  keep(logits, rule, scale);
  return draw_from_kept(scale, key);
}

// Fills kept_ by top-k, top-p and min-p; never leaves it empty.
void TokenDraw::keep(std::span<const float> logits, const DrawRule& rule, LogitScale scale) {
  if (rule.top_k > 0) {
    select_top(logits, rule.top_k, kept_);
    weigh(scale);
    if (rule.top_p < 1.0) {
      keep_nucleus(kept_, rule.top_p * static_cast<double>(total_mass(kept_)));
    }
  } else if (rule.top_p < 1.0) {
    keep_share_of_all(logits, rule.top_p, scale);
  } else {
    gather(logits, scale, rule.min_p);
  }
  if (rule.min_p > 0.0F) {
    std::erase_if(kept_, [&](const Candidate& c) { return c.weight < rule.min_p; });
  }
}

void TokenDraw::keep_share_of_all(std::span<const float> logits, double top_p, LogitScale scale) {
  const double limit = top_p * static_cast<double>(sum_weight_mass(
                                   logits.data(), static_cast<int>(logits.size()), scale));
  select_top(logits, static_cast<int>(std::min(kUsualNucleus, logits.size())), kept_);
  weigh(scale);
  if (static_cast<double>(total_mass(kept_)) < limit) gather(logits, scale, 0.0F);
  keep_nucleus(kept_, limit);
}

// kept_ becomes every unmasked token of at least `min_weight`.
void TokenDraw::gather(std::span<const float> logits, LogitScale scale, float min_weight) {
  float weights[kScoreBlock];
  const auto vocab = static_cast<int>(logits.size());
  kept_.clear();
  for (int first = 0; first < vocab; first += kScoreBlock) {
    const int size = std::min(kScoreBlock, vocab - first);
    const float* block = logits.data() + first;
    score_loops().weights(block, size, scale, weights);
    for (int i = 0; i < size; ++i) {
      if (weights[i] < min_weight || !(block[i] > -kInfinity)) continue;
      kept_.push_back({.value = block[i], .weight = weights[i], .id = first + i});
    }
  }
}

// Sets the weights of kept_, whose order it leaves alone.
void TokenDraw::weigh(LogitScale scale) {
  float values[kScoreBlock];
  float weights[kScoreBlock];
  for (size_t first = 0; first < kept_.size(); first += kScoreBlock) {
    const auto block =
        std::span(kept_).subspan(first, std::min<size_t>(kScoreBlock, kept_.size() - first));
    for (size_t i = 0; i < block.size(); ++i) values[i] = block[i].value;
    score_loops().weights(values, static_cast<int>(block.size()), scale, weights);
    for (size_t i = 0; i < block.size(); ++i) block[i].weight = weights[i];
  }
}

int32_t TokenDraw::draw_from_kept(LogitScale scale, NoiseKey key) const {
  float values[kScoreBlock];
  int32_t ids[kScoreBlock];
  Winner winner;
  for (size_t first = 0; first < kept_.size(); first += kScoreBlock) {
    const auto block =
        std::span(kept_).subspan(first, std::min<size_t>(kScoreBlock, kept_.size() - first));
    for (size_t i = 0; i < block.size(); ++i) {
      values[i] = block[i].value;
      ids[i] = block[i].id;
    }
    winner.challenge(values, ids, static_cast<int>(block.size()), scale, key);
  }
  return winner.id();
}

}  // namespace convoy
