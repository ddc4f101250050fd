// Sets of tokens in the order of sampling: larger value first, the lower id first among equals.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

struct Candidate {
  float value = 0.0F;   ///< processed logit, before temperature
  float weight = 0.0F;  ///< exp((value - largest) / temperature), 0..1
  int32_t id = 0;
};

inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

/// The best id of `logits`, -1 if every one is NaN or -infinity.
int32_t best_id(std::span<const float> logits);

/// Replaces `out` by the `count` first tokens of `logits` in sampling order, in no order, weights
/// 0: exactly `count`, or fewer when fewer are neither NaN nor -infinity. Linear in the vocabulary.
/// Allocates only if out's capacity is below top_capacity().
void select_top(std::span<const float> logits, int count, std::vector<Candidate>& out);
size_t top_capacity(size_t vocab, int count);

/// Cuts `candidates` (weights set) to those whose predecessors in sampling order hold less than
/// `limit` of weight_mass; the first always stays. Reorders them. Linear on average, no sort.
void keep_nucleus(std::vector<Candidate>& candidates, double limit);

/// Sum of weight_mass.
uint64_t total_mass(std::span<const Candidate> candidates);

}  // namespace convoy
