#include "coordinator/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/draw/candidates.h"
#include "kernels/draw/score_loops.h"
#include "kernels/ops/gumbel.h"

namespace convoy {

LogprobReport token_logprobs(std::span<const float> logits, int valid_vocab, int32_t drawn,
                             int top_count) {
  CONVOY_CHECK_OP(logits.size(), >=, static_cast<size_t>(valid_vocab));
  CONVOY_CHECK_OP(drawn, >=, 0);
  CONVOY_CHECK_OP(drawn, <, valid_vocab);
  CONVOY_CHECK_OP(top_count, >=, 0);
  logits = logits.first(static_cast<size_t>(valid_vocab));

  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  LogprobReport report{.drawn = {drawn, kImpossible}, .top = {}};
  const int32_t best = best_id(logits);
  if (best < 0) return report;
  const LogitScale scale{.largest = logits[static_cast<size_t>(best)], .temperature = 1.0F};
  // Not std::log, whose last bit differs between versions of libm.
  const auto mass = static_cast<float>(sum_weight_mass(logits.data(), valid_vocab, scale));
  const float log_sum = draw::natural_log(mass * 0x1p-40F);
  const auto logprob = [&](float logit) {
    const float scaled = draw::scaled_logit(logit, scale.largest, scale.temperature);
    return std::isnan(scaled) ? kImpossible : scaled - log_sum;
  };

  report.drawn.logprob = logprob(logits[static_cast<size_t>(drawn)]);
  if (top_count == 0) return report;
  std::vector<Candidate> top;
  select_top(logits, top_count, top);
  std::sort(top.begin(), top.end(), ranks_before);
  for (const Candidate& candidate : top) {
    report.top.push_back({candidate.id, logprob(candidate.value)});
  }
  return report;
}

}  // namespace convoy
