// Draws a token on the host; CUDA devices do the same in kernels/cuda/sample.cu, bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/draw/candidates.h"
#include "kernels/draw/score_loops.h"
#include "kernels/ops/draw_rule.h"

namespace convoy {

/// Every set is a prefix of one total order: larger logit first, the lower id first among equals.
/// NaN and -infinity are masked: never drawn. The draw itself follows kernels/ops/gumbel.h. What is
/// drawn depends on the logits and the rule alone. Not thread-safe; keeps memory between draws.
class TokenDraw {
 public:
  /// Takes the memory that `rule` can need over `vocab` ids, most of it touched only where a
  /// distribution is flat.
  void reserve(const DrawRule& rule, size_t vocab);

  /// The drawn id; -1 where every token is masked. At most 2^23 logits.
  int32_t draw(std::span<const float> logits, const DrawRule& rule);

 private:
  void keep(std::span<const float> logits, const DrawRule& rule, LogitScale scale);
  void keep_share_of_all(std::span<const float> logits, double top_p, LogitScale scale);
  void gather(std::span<const float> logits, LogitScale scale, float min_weight);
  void weigh(LogitScale scale);
  int32_t draw_from_kept(LogitScale scale, NoiseKey key) const;

  std::vector<Candidate> kept_;
};

}  // namespace convoy
