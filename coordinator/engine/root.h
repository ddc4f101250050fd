// What rank 0 has besides its layers: embedding, final norm, head and the choice of the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/device.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/stage_memory.h"
#include "shared/stage/weights.h"

namespace convoy {

/// Owns the root weights and the buffers around them. One thread uses it.
class Root {
 public:
  /// `valid_vocab`: token ids that may be chosen, 1..vocab_size; padded rows of the head lie above.
  /// Throws StartError.
  Root(Device& device, Stream& stream, const Checkpoint& checkpoint, const StageLimits& limits,
       int valid_vocab, const LoadProgress& progress);

  /// Embeds `ids` (host memory, at most max_columns, each below vocab_size: checked) into `out`,
  /// f32 [ids, hidden].
  void embed(Stream& stream, std::span<const int32_t> ids, float* out);

  /// Where the residual of each lane's last column must be before choose(): device memory, f32
  /// [lanes, hidden].
  float* last_columns() const { return last_.as<float>(); }
  /// Final norm, head and greedy choice for `lanes` rows; waits and gives the ids.
  void choose(Stream& stream, int lanes, std::span<int32_t> ids);
  /// Logits of the last choose(): device memory, f32 [lanes, vocab_size].
  const float* logits() const { return logits_.as<float>(); }
  int vocab_size() const { return config_.vocab_size; }
  /// What was taken; equals root_memory() of the plan.
  StageMemory memory() const { return memory_; }

 private:
  Device& device_;
  ModelConfig config_;
  int max_lanes_;
  int max_columns_;
  int valid_vocab_;
  StageMemory memory_;
  WeightSet weights_;
  Buffer token_ids_;  // i32 [max_columns]
  Buffer last_;       // f32 [lanes, hidden]
  Buffer normed_;     // f32 [lanes, hidden]
  Buffer logits_;     // f32 [lanes, vocab]
  Buffer chosen_;     // i32 [lanes]
};

}  // namespace convoy
