#include "coordinator/sampling/sampler.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/ops/gumbel.h"

namespace convoy {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Tokens that nearly always hold top_p of a language model's distribution.
constexpr int kUsualNucleus = 512;
/// What a sum of weight_mass has room for.
constexpr int kMaxVocab = 1 << 23;

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

}  // namespace

Sampler::Sampler(const SamplingOptions& options, int valid_vocab)
    : options_(options),
      valid_vocab_(valid_vocab),
      top_k_(options.top_k > 0 && options.top_k < valid_vocab ? static_cast<int>(options.top_k)
                                                              : 0),
      penalties_(options, valid_vocab) {
  CONVOY_CHECK_OP(valid_vocab, >, 0);
  CONVOY_CHECK_OP(valid_vocab, <=, kMaxVocab);
  const Status allowed = options.validate(valid_vocab);
  CONVOY_CHECK(allowed.ok(), allowed.error());
  const auto vocab = static_cast<size_t>(valid_vocab);
  if (penalties_.active() || !options_.logit_bias.empty()) processed_.resize(vocab);
  // Address space only, until a flat distribution needs it.
  if (!options_.is_greedy()) kept_.reserve(top_k_ > 0 ? top_capacity(vocab, top_k_) : vocab);
}

Result<int32_t> Sampler::draw(std::span<const float> logits, uint64_t token_index,
                              std::span<const int32_t> drafts_before) {
  CONVOY_CHECK_OP(logits.size(), >=, static_cast<size_t>(valid_vocab_));
  logits = process(logits.first(static_cast<size_t>(valid_vocab_)), drafts_before);
  const int32_t best = best_id(logits);
  if (best < 0) return Error{"no token can be drawn: every token is masked"};
  if (options_.is_greedy()) return best;

  const LogitScale scale{.largest = logits[static_cast<size_t>(best)],
                         .temperature = static_cast<float>(options_.temperature)};
  const NoiseKey key{.seed = options_.seed, .token_index = token_index};
  if (top_k_ == 0 && options_.top_p == 1.0 && options_.min_p == 0.0) {
    return draw_from_all(logits, best, scale, key);
  }
  keep(logits, scale);
  return draw_from_kept(scale, key);
}

std::span<const float> Sampler::process(std::span<const float> logits,
                                        std::span<const int32_t> drafts_before) {
  if (processed_.empty()) return logits;
  std::copy(logits.begin(), logits.end(), processed_.begin());
  apply_bias(processed_);
  for (const int32_t id : drafts_before) penalties_.observe_generated(id);
  penalties_.apply(processed_);
  for (const int32_t id : drafts_before) penalties_.forget_generated(id);
  return processed_;
}

// Infinities of opposite sign give NaN, which is masked: a ban holds against an infinite logit, and
// a forced token does not come back from a mask.
void Sampler::apply_bias(std::span<float> logits) const {
  for (const auto& [id, bias] : options_.logit_bias) {
    logits[static_cast<size_t>(id)] += static_cast<float>(bias);
  }
}

// Fills kept_ by top-k, top-p and min-p; never leaves it empty.
void Sampler::keep(std::span<const float> logits, LogitScale scale) {
  const auto min_weight = static_cast<float>(options_.min_p);
  if (top_k_ > 0) {
    select_top(logits, top_k_, kept_);
    weigh(scale);
    if (options_.top_p < 1.0) {
      keep_nucleus(kept_, options_.top_p * static_cast<double>(total_mass(kept_)));
    }
  } else if (options_.top_p < 1.0) {
    keep_share_of_all(logits, scale);
  } else {
    gather(logits, scale, min_weight);
  }
  if (min_weight > 0.0F) {
    std::erase_if(kept_, [&](const Candidate& c) { return c.weight < min_weight; });
  }
}

void Sampler::keep_share_of_all(std::span<const float> logits, LogitScale scale) {
  const double limit =
      options_.top_p * static_cast<double>(sum_weight_mass(logits.data(), valid_vocab_, scale));
  select_top(logits, std::min(kUsualNucleus, valid_vocab_), kept_);
  weigh(scale);
  if (static_cast<double>(total_mass(kept_)) < limit) gather(logits, scale, 0.0F);
  keep_nucleus(kept_, limit);
}

// kept_ becomes every unmasked token of at least `min_weight`.
void Sampler::gather(std::span<const float> logits, LogitScale scale, float min_weight) {
  float weights[kScoreBlock];
  kept_.clear();
  for (int first = 0; first < valid_vocab_; first += kScoreBlock) {
    const int size = std::min(kScoreBlock, valid_vocab_ - first);
    const float* block = logits.data() + first;
    score_loops().weights(block, size, scale, weights);
    for (int i = 0; i < size; ++i) {
      if (weights[i] < min_weight || !(block[i] > -kInfinity)) continue;
      kept_.push_back({.value = block[i], .weight = weights[i], .id = first + i});
    }
  }
}

// Sets the weights of kept_, whose order it leaves alone.
void Sampler::weigh(LogitScale scale) {
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

// Only ids that can still win get noise: with the largest noise there is, they must reach the score
// of `best`.
int32_t Sampler::draw_from_all(std::span<const float> logits, int32_t best, LogitScale scale,
                               NoiseKey key) const {
  Winner winner;
  winner.challenge(&logits[static_cast<size_t>(best)], &best, 1, scale, key);
  // In double and with 0.1 to spare against the rounding of scores.
  const double reach = static_cast<double>(winner.score()) - draw::kLargestNoise - 0.1;
  const double exact_cutoff =
      static_cast<double>(scale.largest) + reach * static_cast<double>(scale.temperature);
  const auto cutoff = static_cast<float>(
      std::max(exact_cutoff, static_cast<double>(std::numeric_limits<float>::lowest())));
  float values[kScoreBlock];
  int32_t ids[kScoreBlock];
  for (int first = 0; first < valid_vocab_; first += kScoreBlock) {
    const int size = std::min(kScoreBlock, valid_vocab_ - first);
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

int32_t Sampler::draw_from_kept(LogitScale scale, NoiseKey key) const {
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
