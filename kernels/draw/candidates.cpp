#include "kernels/draw/candidates.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/ops/gumbel.h"

namespace convoy {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Logits that are compared with a threshold at once; the compiler makes vector code of it.
constexpr size_t kChunk = 32;
constexpr size_t kBufferFloor = 1024;

bool any_above(const float* values, float threshold) {
  int any = 0;
  for (size_t i = 0; i < kChunk; ++i) any |= static_cast<int>(values[i] > threshold);
  return any != 0;
}

// Calls visit(id) for ids in ascending order whose logit may be above threshold(): NaN never is.
template <typename Threshold, typename Visit>
void scan_above(std::span<const float> logits, Threshold threshold, Visit visit) {
  size_t i = 0;
  for (; i + kChunk <= logits.size(); i += kChunk) {
    if (!any_above(logits.data() + i, threshold())) continue;
    for (size_t j = i; j < i + kChunk; ++j) {
      if (logits[j] > threshold()) visit(j);
    }
  }
  for (; i < logits.size(); ++i) {
    if (logits[i] > threshold()) visit(i);
  }
}

}  // namespace

int32_t best_id(std::span<const float> logits) {
  float best = -kInfinity;
  int32_t id = -1;
  scan_above(
      logits, [&] { return best; },
      [&](size_t i) {
        best = logits[i];
        id = static_cast<int32_t>(i);
      });
  return id;
}

size_t top_capacity(size_t vocab, int count) {
  return std::min(vocab, std::max(4 * static_cast<size_t>(count), kBufferFloor));
}

void select_top(std::span<const float> logits, int count, std::vector<Candidate>& out) {
  CONVOY_CHECK_OP(count, >, 0);
  const size_t capacity = top_capacity(logits.size(), count);
  out.clear();
  out.reserve(capacity);
  const auto keep_first = [&] {
    if (out.size() <= static_cast<size_t>(count)) return;
    std::nth_element(out.begin(), out.begin() + (count - 1), out.end(), ranks_before);
    out.resize(static_cast<size_t>(count));
  };
  // Once `count` are held, only what is above the last of them can replace it: ids ascend, so an
  // equal value loses.
  float threshold = -kInfinity;
  scan_above(
      logits, [&] { return threshold; },
      [&](size_t i) {
        out.push_back({.value = logits[i], .weight = 0.0F, .id = static_cast<int32_t>(i)});
        if (out.size() < capacity || capacity == logits.size()) return;
        keep_first();
        threshold = out[static_cast<size_t>(count) - 1].value;
      });
  keep_first();
}

void keep_nucleus(std::vector<Candidate>& candidates, double limit) {
  if (candidates.empty()) return;
  // The first `low` stay, what is behind `high` goes; everything before an index ranks before what
  // is behind it.
  size_t low = 0, high = candidates.size();
  uint64_t before = 0;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const auto begin = candidates.begin();
    std::nth_element(begin + static_cast<ptrdiff_t>(low), begin + static_cast<ptrdiff_t>(middle),
                     begin + static_cast<ptrdiff_t>(high), ranks_before);
    const uint64_t reached = before + total_mass(std::span(candidates).subspan(low, middle - low));
    if (static_cast<double>(reached) < limit) {
      before = reached;
      low = middle;
    } else {
      high = middle;
    }
  }
  candidates.resize(low + 1);
}

uint64_t total_mass(std::span<const Candidate> candidates) {
  uint64_t mass = 0;
  for (const Candidate& candidate : candidates) mass += draw::weight_mass(candidate.weight);
  return mass;
}

}  // namespace convoy
