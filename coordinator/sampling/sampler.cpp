#include "coordinator/sampling/sampler.h"

#include <algorithm>

#include "base/check.h"

namespace convoy {

Sampler::Sampler(const SamplingOptions& options, int valid_vocab)
    : options_(options), valid_vocab_(valid_vocab), penalties_(options, valid_vocab) {
  CONVOY_CHECK_OP(valid_vocab, >, 0);
  const Status allowed = options.validate(valid_vocab);
  CONVOY_CHECK(allowed.ok(), allowed.error());
  const auto vocab = static_cast<size_t>(valid_vocab);
  if (options.changes_logits()) processed_.resize(vocab);
  draw_.reserve(options.rule(0, valid_vocab), vocab);
}

Result<int32_t> Sampler::draw(std::span<const float> logits, uint64_t token_index,
                              std::span<const int32_t> drafts_before) {
  CONVOY_CHECK_OP(logits.size(), >=, static_cast<size_t>(valid_vocab_));
  logits = process(logits.first(static_cast<size_t>(valid_vocab_)), drafts_before);
  const int32_t id = draw_.draw(logits, options_.rule(token_index, valid_vocab_));
  if (id < 0) return Error{std::string(kEveryTokenMasked)};
  return id;
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

}  // namespace convoy
