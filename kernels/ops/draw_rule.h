// How a token is drawn from a row of logits.
#pragma once

#include <cstdint>

namespace convoy {

/// What follows processing of the logits: temperature, top-k, softmax over what is kept, top-p,
/// min-p, draw, as coordinator/sampling/sampler.h orders them. Plain: rows of these lie in device
/// memory. The default is greedy.
struct DrawRule {
  double top_p = 1.0;  ///< 0..1; 1: off
  uint64_t seed = 0;
  uint64_t token_index = 0;  ///< of the sequence's generated tokens, from 0
  float temperature = 0.0F;  ///< 0: the first token of the order
  float min_p = 0.0F;        ///< 0..1; 0: off
  int32_t top_k = 0;         ///< below the number of ids; 0: off

  constexpr bool greedy() const { return temperature == 0.0F; }
};

}  // namespace convoy
