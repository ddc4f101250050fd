// Which tokens a sequence has seen, and what that does to logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/sampling/sampling_options.h"

namespace convoy {

/// Repetition counts prompt and generated tokens, presence and frequency generated ones only (as
/// OpenAI and vLLM do). Ids at or above valid_vocab are ignored: they are never drawn.
/// Keeps nothing when every penalty is neutral. Not thread-safe.
class Penalties {
 public:
  Penalties(const SamplingOptions& options, int valid_vocab);

  void observe_prompt(std::span<const int32_t> ids);
  void observe_generated(int32_t id);
  /// Undoes one observe_generated(id).
  void forget_generated(int32_t id);

  /// Per seen token, each operation rounded to f32: logit = logit > 0 ? logit / repetition : logit
  /// * repetition; if generated: logit = logit - frequency * count, then logit - presence.
  void apply(std::span<float> logits) const;

 private:
  struct Seen {
    int32_t generated = 0;
    bool in_prompt = false;
    bool listed = false;
  };
  Seen* find_or_list(int32_t id);

  float repetition_;
  float frequency_;
  float presence_;
  int valid_vocab_;
  bool active_;
  std::vector<Seen> seen_;       // by id
  std::vector<int32_t> listed_;  // ids with an entry, in order of appearance
};

}  // namespace convoy
