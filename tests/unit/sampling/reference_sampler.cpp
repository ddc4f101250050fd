#include "tests/unit/sampling/reference_sampler.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/ops/gumbel.h"

namespace convoy::testing {
namespace {

float scaled(const SamplingOptions& options, std::span<const float> logits, int32_t best,
             int32_t id) {
  return draw::scaled_logit(logits[static_cast<size_t>(id)], logits[static_cast<size_t>(best)],
                            static_cast<float>(options.temperature));
}

}  // namespace

std::vector<int32_t> reference_kept(const SamplingOptions& options, std::span<const float> logits) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i]) && logits[i] != -INFINITY) order.push_back(static_cast<int32_t>(i));
  }
  const auto value = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return value(a) > value(b); });
  if (options.top_k > 0 && order.size() > static_cast<size_t>(options.top_k)) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  const auto weight = [&](int32_t id) {
    return draw::exp_weight(scaled(options, logits, order[0], id));
  };
  uint64_t total = 0;
  for (const int32_t id : order) total += draw::weight_mass(weight(id));
  std::vector<int32_t> kept;
  uint64_t before = 0;
  for (const int32_t id : order) {
    const bool in_nucleus =
        kept.empty() || options.top_p == 1.0 ||
        static_cast<double>(before) < options.top_p * static_cast<double>(total);
    if (!in_nucleus || weight(id) < static_cast<float>(options.min_p)) break;
    before += draw::weight_mass(weight(id));
    kept.push_back(id);
  }
  return kept;
}

int32_t reference_draw(const SamplingOptions& options, std::span<const float> logits,
                       uint64_t token_index) {
  std::vector<int32_t> kept = reference_kept(options, logits);
  const int32_t best = kept.at(0);
  std::sort(kept.begin(), kept.end());
  float best_score = -INFINITY;
  int32_t drawn = -1;
  for (const int32_t id : kept) {
    const float score =
        scaled(options, logits, best, id) + draw::gumbel_noise(options.seed, token_index, id);
    if (score > best_score) {
      best_score = score;
      drawn = id;
    }
  }
  return drawn;
}

std::vector<double> reference_probabilities(const SamplingOptions& options,
                                            std::span<const float> logits) {
  std::vector<double> probabilities(logits.size(), 0.0);
  const std::vector<int32_t> kept = reference_kept(options, logits);
  double sum = 0.0;
  for (const int32_t id : kept) {
    const auto i = static_cast<size_t>(id);
    probabilities[i] = std::exp((static_cast<double>(logits[i]) -
                                 static_cast<double>(logits[static_cast<size_t>(kept[0])])) /
                                options.temperature);
    sum += probabilities[i];
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

std::vector<float> random_logits(uint32_t seed, int count, float spread, float step) {
  std::mt19937 random(seed);
  const int steps = static_cast<int>(spread / step);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& logit : logits) {
    logit = static_cast<float>(static_cast<int>(random() % static_cast<uint32_t>(2 * steps + 1)) -
                               steps) *
            step;
  }
  return logits;
}

}  // namespace convoy::testing
