// Cuts the layers of a model into stages so that the stages hold as many KV page groups as
// possible.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/ids.h"

namespace convoy {

/// What a cut is made of. Bytes must not shrink when a range grows.
struct SplitProblem {
  int layers = 0;
  int stages = 0;  ///< 1..layers
  /// Bytes that `stage` takes for a range of layers beside KV pages: weights, state, workspace, and
  /// what only this stage has. Asked once for every stage and range.
  std::function<uint64_t(int stage, LayerRange range)> fixed_bytes;
  std::vector<uint64_t> page_bytes;       ///< per layer: KV bytes of one page group, may be 0
  std::vector<uint64_t> available_bytes;  ///< per stage
  int least_page_groups = 0;              ///< fewer are of no use
  int most_page_groups = 0;               ///< more are of no use

  /// What counts as load when stages are balanced: (sum of layer_load, first_load for stage 0 too)
  /// over the stage's rate. Without layer_load: the bytes of the stage with its pages.
  std::vector<uint64_t> layer_load;
  uint64_t first_load = 0;
  std::vector<uint64_t> rate;  ///< per stage, at least 1
};

struct Split {
  bool fits = false;    ///< every stage holds least_page_groups
  int page_groups = 0;  ///< that every stage holds; least_page_groups where nothing fits
  std::vector<LayerRange> stages;
  friend bool operator==(const Split&, const Split&) = default;
};

/// Exact (dynamic programming over stages and layers, O(stages * layers^2)). Among all cuts in
/// which every stage has at least one layer: the most page groups, up to most_page_groups; then the
/// least load of the most loaded stage; then the fewest layers in stage 0, in stage 1, and so on.
/// Where nothing fits, memory counts for nothing: an even deal at least_page_groups.
Split solve_split(const SplitProblem& problem);

}  // namespace convoy
