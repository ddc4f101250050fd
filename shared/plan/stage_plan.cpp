#include "shared/plan/stage_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/plan/weight_table.h"

namespace convoy {
namespace {

std::vector<LayerRange> ranges_from_counts(std::span<const int> counts) {
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (const int count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

void check_counts(const ModelConfig& config, size_t devices, const std::vector<int>& counts) {
  if (counts.size() != devices) {
    throw UsageError(
        fmt::format("--stage-layers names {} stages, --devices {}", counts.size(), devices));
  }
  const int total = std::accumulate(counts.begin(), counts.end(), 0);
  if (total != config.num_layers) {
    throw UsageError(fmt::format("--stage-layers {} adds up to {} layers, the model has {}",
                                 fmt::join(counts, ","), total, config.num_layers));
  }
}

}  // namespace

std::vector<LayerRange> split_by_weight(std::span<const uint64_t> layer_bytes, uint64_t root_bytes,
                                        int stages) {
  const auto layers = static_cast<int>(layer_bytes.size());
  CONVOY_CHECK_OP(stages, >=, 1);
  CONVOY_CHECK_OP(stages, <=, layers);
  std::vector<uint64_t> prefix(layer_bytes.size() + 1, 0);
  for (size_t i = 0; i < layer_bytes.size(); ++i) prefix[i + 1] = prefix[i] + layer_bytes[i];
  const auto range_bytes = [&](int begin, int end) {
    return prefix[static_cast<size_t>(end)] - prefix[static_cast<size_t>(begin)] +
           (begin == 0 ? root_bytes : 0);
  };

  // heaviest[s][b]: the least possible weight of the heaviest of s parts that cover layers b..end.
  constexpr uint64_t kImpossible = std::numeric_limits<uint64_t>::max();
  std::vector<std::vector<uint64_t>> heaviest(
      static_cast<size_t>(stages) + 1,
      std::vector<uint64_t>(static_cast<size_t>(layers) + 1, kImpossible));
  heaviest[0][static_cast<size_t>(layers)] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int begin = 0; begin < layers; ++begin) {
      for (int end = begin + 1; end <= layers; ++end) {
        const uint64_t rest = heaviest[static_cast<size_t>(s) - 1][static_cast<size_t>(end)];
        if (rest == kImpossible) continue;
        uint64_t& best = heaviest[static_cast<size_t>(s)][static_cast<size_t>(begin)];
        best = std::min(best, std::max(rest, range_bytes(begin, end)));
      }
    }
  }

  const uint64_t bound = heaviest[static_cast<size_t>(stages)][0];
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (int left = stages - 1; left >= 0; --left) {
    int end = begin + 1;
    while (heaviest[static_cast<size_t>(left)][static_cast<size_t>(end)] > bound) ++end;
    CONVOY_CHECK_OP(range_bytes(begin, end), <=, bound);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

StagePlan make_stage_plan(const ModelConfig& config, const std::vector<DeviceSpec>& devices,
                          const std::vector<int>& stage_layers, const StageLimits& limits) {
  const auto stages = static_cast<int>(devices.size());
  CONVOY_CHECK_OP(stages, >=, 1);
  if (stages > config.num_layers) {
    throw UsageError(fmt::format("--devices names {} stages, the model has only {} layers", stages,
                                 config.num_layers));
  }
  const DeviceKind kind = devices.front().kind;
  std::vector<LayerRange> ranges;
  if (stage_layers.empty()) {
    std::vector<uint64_t> layer_bytes;
    for (int layer = 0; layer < config.num_layers; ++layer) {
      layer_bytes.push_back(stage_memory(config, {layer, layer + 1}, limits, kind).weight_bytes);
    }
    ranges = split_by_weight(layer_bytes, root_memory(config, limits, kind).weight_bytes, stages);
  } else {
    check_counts(config, devices.size(), stage_layers);
    ranges = ranges_from_counts(stage_layers);
  }

  StagePlan plan;
  plan.limits = limits;
  for (int rank = 0; rank < stages; ++rank) {
    const LayerRange layers = ranges[static_cast<size_t>(rank)];
    StageMemory memory = stage_memory(config, layers, limits, kind);
    if (rank == 0) {
      const StageMemory root = root_memory(config, limits, kind);
      memory.weight_bytes += root.weight_bytes;
      memory.workspace_bytes += root.workspace_bytes;
    }
    plan.stages.push_back({Rank{rank}, devices[static_cast<size_t>(rank)], layers, memory});
  }
  return plan;
}

}  // namespace convoy
