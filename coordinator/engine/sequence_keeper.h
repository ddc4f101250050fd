// Sequences from their admission on every stage to the step that releases them, and the prefixes
// that stay behind for others.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "coordinator/engine/admission.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/pipeline.h"
#include "shared/kv/prefix_cache.h"
#include "shared/kv/sequence.h"

namespace convoy {

/// What stays of a sequence for later prompts that begin alike.
enum class PrefixCacheMode {
  off,
  exact,  ///< what prompts computed: a hit changes no bit of an answer
  fast,   ///< what answers computed, too: other kernels made it, so bits may differ
};

/// A prompt, and where in it other prompts may branch off: turns of a chat, in tokens, ascending.
struct KeptPrompt {
  std::span<const int32_t> ids;
  std::span<const int> turns;
};

/// A sequence that every stage has admitted.
struct AdmittedSequence {
  uint64_t request = 0;
  std::unique_ptr<Sequence> sequence;  ///< null: refused
  std::optional<AdmissionRefusal> refusal;
  int cached_tokens = 0;           ///< of the prompt: they need not be computed
  std::vector<StateImage> images;  ///< that prefill() leaves
  int32_t boundary_slot = -1;      ///< takes the state at page ends of the answer; -1: none
};

/// Gives rows and page groups out and takes them back in the order of steps: both are free again
/// when every stage has passed the release entry, since only then do the workers' ledgers agree.
/// One thread uses it. Errors: a stage was lost, or the pipeline was released.
class SequenceKeeper {
 public:
  /// `pipeline`: null for one stage. All of them must outlive the keeper. The prefix cache has the
  /// image slots of the engine's limits.
  /// `changed` is told how the cache does.
  SequenceKeeper(Engine& engine, Admission& admission, Pipeline* pipeline, PrefixCacheMode mode,
                 std::function<void(const PrefixCacheStats&)> changed = {});

  /// A fresh sequence in `row`, which no running one has, with page groups for `max_tokens`
  /// positions promised on every stage; or which stage has too few of them now. It begins behind
  /// the longest prefix of the prompt that the cache has; prefill() must follow before another
  /// admit(). Without `prompt` nothing is looked up and nothing will be kept.
  Result<AdmittedSequence> admit(int row, int max_tokens, const KeptPrompt& prompt = {});
  /// Computes the rest of the prompt and keeps its prefixes; the token that follows, or
  /// Engine::kStopped as Engine::prefill() gives it.
  Result<int32_t> prefill(AdmittedSequence& admitted, std::span<const int32_t> ids,
                          const DrawRule& rule, const std::function<bool()>& stop = {});
  /// Publishes the release of the sequence behind all its steps. Its row and page groups are free
  /// at the latest when the next admit() returns. `ids`: prompt and answer, for the cache; may be
  /// empty.
  Status retire(AdmittedSequence admitted, std::span<const int32_t> ids = {});

  PrefixCacheStats cache_stats() const { return cache_ ? cache_->stats() : PrefixCacheStats{}; }

 private:
  struct Retired {
    uint32_t published;  // entries up to its release
    AdmittedSequence admitted;
  };
  Status settle();
  Status make_room(int page_groups);
  std::vector<StateImage> choose_images(const KeptPrompt& prompt, const PrefixHit& hit);
  Status keep_answer(const AdmittedSequence& admitted, std::span<const int32_t> ids);
  void keep_prompt(AdmittedSequence& admitted, std::span<const int32_t> ids);
  Status publish_changes();

  Engine& engine_;
  Admission& admission_;
  Pipeline* pipeline_;
  PrefixCacheMode mode_;
  std::function<void(const PrefixCacheStats&)> changed_;
  std::optional<PrefixCache> cache_;
  std::deque<Retired> retired_;  // oldest first
};

/// Where a prompt of `tokens` tokens leaves images, the most useful place first: before its last
/// token, at its end, where it leaves what other prompts were, at turns, and at doubling distances
/// from chunk to chunk. Multiples of kPageTokens beyond what the cache had.
std::vector<int> image_places(int tokens, const PrefixHit& hit, std::span<const int> turns,
                              int chunk_tokens);

}  // namespace convoy
