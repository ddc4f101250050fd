#include "shared/plan/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/exit_code.h"
#include "shared/plan/weight_table.h"
#include "tests/unit/plan/plan_models.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<uint64_t> part_bytes(const std::vector<LayerRange>& parts,
                                 std::span<const uint64_t> layers, uint64_t root) {
  std::vector<uint64_t> bytes;
  for (const LayerRange& part : parts) {
    uint64_t sum = part.begin == 0 ? root : 0;
    for (int layer = part.begin; layer < part.end; ++layer)
      sum += layers[static_cast<size_t>(layer)];
    bytes.push_back(sum);
  }
  return bytes;
}

// Tries every cut. Best: the lightest heaviest part, then the lightest earlier parts, first part
// first.
std::vector<uint64_t> brute_force(std::span<const uint64_t> layers, uint64_t root, int stages) {
  const int count = static_cast<int>(layers.size());
  std::vector<uint64_t> best;
  std::vector<LayerRange> parts;
  const auto visit = [&](const auto& self, int begin) -> void {
    const int left = stages - static_cast<int>(parts.size());
    if (left == 0) {
      if (begin != count) return;
      const auto bytes = part_bytes(parts, layers, root);
      const auto key = [](const std::vector<uint64_t>& b) {
        return std::pair(*std::max_element(b.begin(), b.end()), b);
      };
      if (best.empty() || key(bytes) < key(best)) best = bytes;
      return;
    }
    for (int end = begin + 1; end <= count; ++end) {
      parts.push_back({begin, end});
      self(self, end);
      parts.pop_back();
    }
  };
  visit(visit, 0);
  return best;
}

void expect_contiguous(const std::vector<LayerRange>& parts, size_t layers) {
  int at = 0;
  for (const LayerRange& part : parts) {
    EXPECT_EQ(part.begin, at);
    EXPECT_GE(part.size(), 1);
    at = part.end;
  }
  EXPECT_EQ(at, static_cast<int>(layers));
}

TEST(SplitByWeight, EqualsTheBestOfAllCutsOnRandomModels) {
  std::mt19937 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 4000; ++round) {
    const size_t count = 1 + below(9);
    const int stages = static_cast<int>(1 + below(count));
    const uint64_t scale =
        round % 3 == 0 ? 3 : 1000;  // small scales make many ties and layers without weight
    std::vector<uint64_t> layers(count);
    for (uint64_t& bytes : layers) bytes = below(scale);
    const uint64_t root = below(4) == 0 ? 0 : below(3 * scale);
    const auto parts = split_by_weight(layers, root, stages);
    ASSERT_EQ(parts.size(), static_cast<size_t>(stages));
    expect_contiguous(parts, count);
    ASSERT_EQ(part_bytes(parts, layers, root), brute_force(layers, root, stages))
        << "round " << round;
    ASSERT_EQ(split_by_weight(layers, root, stages), parts);
  }
}

TEST(SplitByWeight, TiesLightenEarlierStages) {
  const std::vector<uint64_t> layers{1, 1, 1, 1, 1};
  EXPECT_EQ(split_by_weight(layers, 0, 2), (std::vector<LayerRange>{{0, 2}, {2, 5}}));
  EXPECT_EQ(split_by_weight(layers, 0, 3), (std::vector<LayerRange>{{0, 1}, {1, 3}, {3, 5}}));
}

TEST(SplitByWeight, RootBytesCountForTheFirstStage) {
  const std::vector<uint64_t> layers{10, 10, 10, 10};
  EXPECT_EQ(split_by_weight(layers, 20, 2), (std::vector<LayerRange>{{0, 1}, {1, 4}}));
  EXPECT_EQ(split_by_weight(layers, 1000, 2), (std::vector<LayerRange>{{0, 1}, {1, 4}}));
}

TEST(SplitByWeight, AsManyStagesAsLayers) {
  const std::vector<uint64_t> layers{5, 0, 7};
  EXPECT_EQ(split_by_weight(layers, 1, 3), (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}}));
}

TEST(SplitByWeight, MoreStagesThanLayersIsABrokenInvariant) {
  const std::vector<uint64_t> layers{5, 7};
  EXPECT_DEATH(split_by_weight(layers, 0, 3), "stages");
  EXPECT_DEATH(split_by_weight(layers, 0, 0), "stages");
}

std::string plan_error(int devices, const std::vector<int>& counts) {
  try {
    make_stage_plan(standin_config(),
                    std::vector<DeviceSpec>(static_cast<size_t>(devices), {DeviceKind::cpu, "cpu"}),
                    counts, {});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(MakeStagePlan, RefusesMoreDevicesThanLayers) {
  EXPECT_THAT(plan_error(13, {}), AllOf(HasSubstr("13"), HasSubstr("12")));
  EXPECT_EQ(plan_error(12, {}), "(no error)");
}

TEST(MakeStagePlan, RefusesCountsThatFitNeitherDevicesNorModel) {
  EXPECT_THAT(plan_error(3, {6, 6}), AllOf(HasSubstr("2 stages"), HasSubstr("3")));
  EXPECT_THAT(plan_error(2, {6, 5}), AllOf(HasSubstr("6,5"), HasSubstr("11"), HasSubstr("12")));
  EXPECT_THAT(plan_error(2, {6, 7}), AllOf(HasSubstr("6,7"), HasSubstr("13"), HasSubstr("12")));
  EXPECT_THAT(plan_error(2, {4096, 4096}), HasSubstr("8192"));
  EXPECT_EQ(plan_error(2, {11, 1}), "(no error)");
}

TEST(MakeStagePlan, StageLayersAreHonouredExactly) {
  const auto plan =
      make_stage_plan(standin_config(), parse_devices("cpu,cpu,cpu", "x"), {1, 10, 1}, {});
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].layers, (LayerRange{0, 1}));
  EXPECT_EQ(plan.stages[1].layers, (LayerRange{1, 11}));
  EXPECT_EQ(plan.stages[2].layers, (LayerRange{11, 12}));
}

TEST(MakeStagePlan, RankDeviceAndMemoryBelongTogether) {
  const ModelConfig config = config_27b();
  const StageLimits limits{.max_context_tokens = 4096, .page_groups = 64};
  const auto plan = make_stage_plan(config, parse_devices("3,1", "x"), {}, limits);
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.limits.page_groups, 64);
  StageMemory first = stage_memory(config, plan.stages[0].layers, limits, DeviceKind::cuda);
  const StageMemory root = root_memory(config, limits, DeviceKind::cuda);
  first.weight_bytes += root.weight_bytes;
  first.workspace_bytes += root.workspace_bytes;
  EXPECT_EQ(plan.stages[0].rank.value, 0);
  EXPECT_EQ(plan.stages[0].device.id, "cuda:3");
  EXPECT_EQ(plan.stages[0].memory, first);
  EXPECT_EQ(plan.stages[1].rank.value, 1);
  EXPECT_EQ(plan.stages[1].device.id, "cuda:1");
  EXPECT_EQ(plan.stages[1].memory,
            stage_memory(config, plan.stages[1].layers, limits, DeviceKind::cuda));
  // Embedding and head weigh as much as several layers, so rank 0 has fewer.
  EXPECT_LT(plan.stages[0].layers.size(), plan.stages[1].layers.size());
}

}  // namespace
}  // namespace convoy
