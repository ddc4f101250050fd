#include "coordinator/sampling/penalties.h"

#include "base/check.h"

namespace convoy {

Penalties::Penalties(const SamplingOptions& options, int valid_vocab)
    : repetition_(static_cast<float>(options.repetition_penalty)),
      frequency_(static_cast<float>(options.frequency_penalty)),
      presence_(static_cast<float>(options.presence_penalty)),
      valid_vocab_(valid_vocab),
      active_(repetition_ != 1.0F || frequency_ != 0.0F || presence_ != 0.0F) {
  if (!active_) return;
  seen_.resize(static_cast<size_t>(valid_vocab));
  listed_.reserve(static_cast<size_t>(valid_vocab));
}

Penalties::Seen* Penalties::find_or_list(int32_t id) {
  CONVOY_CHECK_OP(id, >=, 0);
  if (!active_ || id >= valid_vocab_) return nullptr;
  Seen& seen = seen_[static_cast<size_t>(id)];
  if (!seen.listed) {
    seen.listed = true;
    listed_.push_back(id);
  }
  return &seen;
}

void Penalties::observe_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (Seen* seen = find_or_list(id)) seen->in_prompt = true;
  }
}

void Penalties::observe_generated(int32_t id) {
  if (Seen* seen = find_or_list(id)) ++seen->generated;
}

void Penalties::forget_generated(int32_t id) {
  if (Seen* seen = find_or_list(id)) {
    CONVOY_CHECK_OP(seen->generated, >, 0);
    --seen->generated;
  }
}

void Penalties::apply(std::span<float> logits) const {
  for (const int32_t id : listed_) {
    const Seen& seen = seen_[static_cast<size_t>(id)];
    if (seen.generated == 0 && !seen.in_prompt) continue;
    float& logit = logits[static_cast<size_t>(id)];
    if (repetition_ != 1.0F) logit = logit > 0.0F ? logit / repetition_ : logit * repetition_;
    if (seen.generated > 0) {
      logit -= frequency_ * static_cast<float>(seen.generated);
      logit -= presence_;
    }
  }
}

}  // namespace convoy
