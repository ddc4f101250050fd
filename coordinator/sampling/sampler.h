// Draws the next token of one sequence from its logits.
//
// The order of processing: logit bias, penalties, temperature, top-k, softmax over what is kept,
// top-p, min-p, draw. That is vLLM's order up to temperature and Hugging Face's from there (vLLM
// applies min-p before top-k, which keeps the same tokens unless top-p is on too).
//
// Every set is a prefix of one total order: larger processed logit first, the lower id first among
// equals. Top-k keeps exactly k tokens, or fewer when fewer are possible (vLLM keeps every tie at
// the last place). Top-p keeps the tokens whose predecessors hold less than top_p of what top-k
// kept, the first one always. Min-p keeps the tokens with at least min_p of the first one's
// probability.
//
// NaN and -infinity are masked tokens. A masked token stays masked, whatever bias it gets.
// Greedy: the first token of the order. Otherwise the draw follows kernels/ops/gumbel.h, which says
// all of its arithmetic. What is drawn depends on logits, options, seed, token index and the tokens
// observed for penalties: not on what this object drew before, nor on the processor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/sampling/penalties.h"
#include "coordinator/sampling/sampling_options.h"
#include "kernels/draw/token_draw.h"

namespace convoy {

/// What draw() says where every token is masked.
inline constexpr std::string_view kEveryTokenMasked =
    "no token can be drawn: every token is masked";

/// One thread at a time. Reserves up to 28 bytes per token of the vocabulary, most of it touched
/// only where options need it.
class Sampler {
 public:
  /// `options` have passed validate(valid_vocab). Ids at or above `valid_vocab` (padded rows of the
  /// head) are never drawn; at most 2^23 are valid.
  Sampler(const SamplingOptions& options, int valid_vocab);

  /// Prompt tokens, once each time the prompt grows: only the repetition penalty sees them.
  void observe_prompt(std::span<const int32_t> ids) { penalties_.observe_prompt(ids); }
  /// A generated token that was accepted: all penalties see it. draw() does not call it.
  void observe(int32_t id) { penalties_.observe_generated(id); }

  /// The token at `token_index`, which counts the sequence's generated tokens from 0. `logits` are
  /// one column, f32, at least valid_vocab values. `drafts_before` are unaccepted draft tokens
  /// between the last observed token and this column: penalties count them for this draw only.
  /// Error: every token is masked.
  Result<int32_t> draw(std::span<const float> logits, uint64_t token_index,
                       std::span<const int32_t> drafts_before = {});

 private:
  std::span<const float> process(std::span<const float> logits,
                                 std::span<const int32_t> drafts_before);
  void apply_bias(std::span<float> logits) const;

  SamplingOptions options_;
  int valid_vocab_;
  Penalties penalties_;
  std::vector<float> processed_;  // empty when nothing changes logits
  TokenDraw draw_;
};

}  // namespace convoy
