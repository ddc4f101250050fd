// Sampling written the plain way, with a full sort: what the sampler must agree with, token by
// token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/sampling/sampling_options.h"

namespace convoy::testing {

/// The ids that top-k, top-p and min-p keep of processed logits, first one first. Ignores bias and
/// penalties.
std::vector<int32_t> reference_kept(const SamplingOptions& options, std::span<const float> logits);

/// The token drawn from reference_kept by the rule of kernels/ops/gumbel.h.
int32_t reference_draw(const SamplingOptions& options, std::span<const float> logits,
                       uint64_t token_index);

/// softmax(logits / temperature) over reference_kept in double; 0 elsewhere.
std::vector<double> reference_probabilities(const SamplingOptions& options,
                                            std::span<const float> logits);

/// `count` values from -spread to spread in steps of `step`: small steps make few ties, large ones
/// many.
std::vector<float> random_logits(uint32_t seed, int count, float spread, float step);

}  // namespace convoy::testing
