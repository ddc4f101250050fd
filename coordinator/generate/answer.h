// One request's answer while it grows: which token follows, its text, and when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/generate/answer_stream.h"
#include "coordinator/generate/generation.h"
#include "coordinator/sampling/sampler.h"

namespace convoy {

/// Knows nothing of the engine. `tokenizer` and `request` outlive it.
class Answer {
 public:
  /// `vocab_size`: the model's, at least what the tokenizer knows may be chosen.
  Answer(const Tokenizer& tokenizer, const GenerationRequest& request, int vocab_size);

  /// How the engine draws the token that comes `ahead` tokens after those pushed; greedy where
  /// choose() draws it.
  DrawRule rule(size_t ahead = 0) const;
  /// Whether choose() wants the logits: penalties, bias and logprobs are the host's.
  bool needs_logits() const { return sampler_ || request_.top_logprobs; }
  /// The token to follow. `engines`: what the engine chose by rule(), -1 if it could not; `logits`:
  /// the vocab_size values of the same step, where they are needed. Error: every token is masked.
  Result<int32_t> choose(int32_t engines, std::span<const float> logits);

  /// Whether `id` is one of the request's stop ids; the result then names it, and it is no token of
  /// the answer.
  bool ends_at(int32_t id);
  /// Takes a token into the answer. What may be shown now, maybe no text.
  AnswerPiece push(int32_t id);
  /// Whether a stop string has ended the text.
  bool stopped() const { return stream_.stopped(); }
  size_t tokens() const { return result_.token_ids.size(); }
  /// The request's, or more than any answer has.
  size_t max_tokens() const { return max_tokens_; }

  /// Ends the text: what was held back.
  AnswerPiece finish(FinishReason reason);
  GenerationResult& result() { return result_; }

 private:
  AnswerPiece add(AnswerPiece piece);

  const GenerationRequest& request_;
  size_t max_tokens_;
  int valid_vocab_;
  AnswerStream stream_;
  std::optional<Sampler> sampler_;  // none: the engine's choice stands
  GenerationResult result_;
};

}  // namespace convoy
