// What a request may ask of sampling, and what is allowed.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.h"
#include "kernels/ops/draw_rule.h"

namespace convoy {

/// Temperatures below this are greedy (the limit vLLM uses), so that no quotient overflows.
inline constexpr double kGreedyTemperature = 1e-5;

/// The defaults draw from the model's own distribution. Numbers are used as f32, top_p as double.
struct SamplingOptions {
  double temperature = 1.0;  ///< 0..1e6
  int64_t top_k = 0;         ///< keep the k largest logits; 0 and -1: off
  double top_p = 1.0;        ///< 0..1: keep the fewest that hold this share; 0 keeps one, 1: off
  double min_p = 0.0;        ///< 0..1: keep what is at least this part of the most probable; 0: off
  double presence_penalty = 0.0;   ///< -2..2, of generated tokens (OpenAI)
  double frequency_penalty = 0.0;  ///< -2..2, of generated tokens (OpenAI)
  double repetition_penalty =
      1.0;  ///< above 0, of prompt and generated tokens (Hugging Face, vLLM); 1: off
  /// Added to logits, by id. -infinity bans a token, +infinity forces it (several share evenly).
  std::map<int32_t, double> logit_bias = {};
  uint64_t seed = 0;
  bool greedy = false;  ///< the largest logit, whatever temperature and filters say

  bool is_greedy() const { return greedy || temperature < kGreedyTemperature; }
  /// Whether bias or penalties change the logits before a token is drawn.
  bool changes_logits() const {
    return !logit_bias.empty() || presence_penalty != 0 || frequency_penalty != 0 ||
           repetition_penalty != 1;
  }
  /// What happens to the logits after that, for the token at `token_index`.
  DrawRule rule(uint64_t token_index, int valid_vocab) const;

  /// The first option that is not allowed: its name, its value and what is. `valid_vocab`: ids that
  /// may be drawn.
  Status validate(int valid_vocab) const;
};

/// A seed for a request that names none, from the operating system. Below 2^53, so that every JSON
/// reader keeps it whole when it is reported.
uint64_t random_seed();

}  // namespace convoy
