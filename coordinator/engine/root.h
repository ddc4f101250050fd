// What rank 0 has besides its layers: embedding, final norm, head and the choice of the next token.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/draw_rule.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/stage_memory.h"
#include "shared/stage/host_staging.h"
#include "shared/stage/weights.h"

namespace convoy {

/// Owns the root weights and the buffers around them. One thread uses it.
class Root {
 public:
  /// `valid_vocab`: token ids that may be chosen, 1..vocab_size; padded rows of the head lie above.
  /// Throws StartError.
  Root(Device& device, Stream& stream, const Checkpoint& checkpoint, const StageLimits& limits,
       int valid_vocab, const LoadProgress& progress);

  /// Before the first step and before links open: every kernel is loaded and run once.
  void prepare(Stream& stream);

  /// Embeds `ids` (read before the call returns; at most max_columns, each below vocab_size:
  /// checked) into `out`, activations [ids, hidden].
  void embed(Stream& stream, std::span<const int32_t> ids, void* out);
  /// Embeds the ids of the last choose(), which the host need not know yet.
  void embed_chosen(Stream& stream, int lanes, void* out);

  /// Where the residual of each lane's last column must be before choose(): device memory,
  /// activations [lanes, hidden].
  void* last_columns() const { return last_.data(); }
  /// Final norm, head and choice for `lanes` rows, in stream order: greedy, or what rules[row]
  /// draws (read before the call returns). The result names this choice.
  uint64_t choose(Stream& stream, int lanes, std::span<const DrawRule> rules = {});
  /// Waits for one of the last kChoices choices and gives its ids; -1: every token is masked, and
  /// embed_chosen() takes any other.
  void wait_chosen(uint64_t choice, std::span<int32_t> ids);
  static constexpr uint64_t kChoices = 4;
  /// Logits of the last choose(): device memory, f32 [lanes, vocab_size].
  const float* logits() const { return logits_.as<float>(); }
  int vocab_size() const { return config_.vocab_size; }
  /// What was taken; equals root_memory() of the plan.
  StageMemory memory() const { return memory_; }

 private:
  void draw(Stream& stream, std::span<const DrawRule> rules);
  void embed_ids(Stream& stream, const int32_t* ids, int rows, void* out);
  int32_t* choice_on_host(uint64_t choice) const {
    return chosen_on_host_.as<int32_t>() + choice % kChoices * static_cast<size_t>(max_lanes_);
  }

  Device& device_;
  ModelConfig config_;
  int max_lanes_;
  int max_columns_;
  int valid_vocab_;
  StageMemory memory_;
  WeightSet weights_;
  Buffer token_ids_;  // i32 [max_columns]
  Buffer last_;       // activations [lanes, hidden]
  Buffer normed_;     // activations [lanes, hidden]
  Buffer logits_;     // f32 [lanes, vocab]
  Buffer chosen_;     // i32 [lanes]
  Buffer rules_;      // DrawRule [lanes]
  Buffer drawn_;      // i32 [lanes]
  HostStaging staged_ids_;
  HostStaging staged_rules_;
  Buffer chosen_on_host_;  // i32 [kChoices, lanes]
  std::array<std::unique_ptr<Event>, kChoices> choice_made_;
  uint64_t choices_ = 0;
};

}  // namespace convoy
