// Log-probabilities that are reported with a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

struct TokenLogprob {
  int32_t id = 0;
  float logprob =
      0.0F;  ///< natural; -infinity for a token the model masked (JSON has no such number)
};

struct LogprobReport {
  TokenLogprob drawn;
  std::vector<TokenLogprob>
      top;  ///< the most probable, best first, the lower id first among equals
};

/// log softmax of the model's raw logits: temperature 1, before bias, penalties and filters, over
/// the ids below `valid_vocab` (what OpenAI and vLLM report by default). So a drawn token can be
/// far from the top, and the numbers do not depend on sampling options. `logits` has at least
/// valid_vocab values; NaN counts as -infinity. At most `top_count` tokens come in `top`: fewer
/// when fewer have a probability above 0. Accurate to 3e-6.
LogprobReport token_logprobs(std::span<const float> logits, int valid_vocab, int32_t drawn,
                             int top_count);

}  // namespace convoy
