#include "shared/plan/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_code.h"
#include "shared/plan/weight_table.h"
#include "tests/unit/plan/plan_models.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanRequest request_for(const std::string& devices, int max_context_tokens = 4096) {
  PlanRequest request;
  request.devices = parse_devices(devices, "x");
  request.max_context_tokens = max_context_tokens;
  return request;
}

std::vector<LayerRange> ranges_of(const StagePlan& plan) {
  std::vector<LayerRange> ranges;
  for (const StageAssignment& stage : plan.stages) ranges.push_back(stage.layers);
  return ranges;
}

std::string plan_error(int devices, const std::vector<int>& counts) {
  try {
    PlanRequest request = request_for("cpu");
    request.devices.resize(static_cast<size_t>(devices), request.devices.front());
    request.stage_layers = counts;
    make_stage_plan(standin_config(), request);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(MakeStagePlan, RefusesMoreDevicesThanLayers) {
  EXPECT_THAT(plan_error(13, {}), AllOf(HasSubstr("13"), HasSubstr("12")));
  EXPECT_EQ(plan_error(12, {}), "(no error)");
}

TEST(MakeStagePlan, HalfOfTheHostCacheIsForPagesAsTheyAreStoredAndHalfForImages) {
  const ModelConfig config = config_27b();
  const LayerRange all{0, config.num_layers};
  constexpr uint64_t kBytes = uint64_t{8} << 30;
  for (const KvDtype dtype : {KvDtype::bf16, KvDtype::int8}) {
    PlanRequest request = request_for("0,1");
    request.image_slots = 4;
    request.host_cache_bytes = kBytes;
    request.kv_dtype = dtype;
    const StageLimits limits = make_stage_plan(config, request).limits;
    EXPECT_EQ(static_cast<uint64_t>(limits.host_pages),
              kBytes / 2 / page_group_bytes(config, all, dtype))
        << kv_dtype_name(dtype);
    EXPECT_EQ(static_cast<uint64_t>(limits.host_slots),
              kBytes / 2 / state_image_bytes(config, all));
    request.image_slots = 0;
    EXPECT_EQ(make_stage_plan(config, request).limits.host_pages, 0);
  }
}

TEST(MakeStagePlan, RefusesCountsThatFitNeitherDevicesNorModel) {
  EXPECT_THAT(plan_error(3, {6, 6}), AllOf(HasSubstr("2 stages"), HasSubstr("3")));
  EXPECT_THAT(plan_error(2, {6, 5}), AllOf(HasSubstr("6,5"), HasSubstr("11"), HasSubstr("12")));
  EXPECT_THAT(plan_error(2, {6, 7}), AllOf(HasSubstr("6,7"), HasSubstr("13"), HasSubstr("12")));
  EXPECT_THAT(plan_error(2, {4096, 4096}), HasSubstr("8192"));
  EXPECT_EQ(plan_error(2, {11, 1}), "(no error)");
}

TEST(MakeStagePlan, RefusesCountsByTheNamesUnderWhichTheyWereGiven) {
  PlanRequest request = request_for("cpu,cpu");
  request.names = {.devices = "CONVOY_DEVICES", .stage_layers = "CONVOY_STAGE_LAYERS"};
  const auto refuse = [&](const std::string& devices, const std::vector<int>& counts,
                          const std::string& said) {
    request.devices = parse_devices(devices, "x");
    request.stage_layers = counts;
    try {
      make_stage_plan(standin_config(), request);
      ADD_FAILURE() << said;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(said));
    }
  };
  refuse("cpu", {3, 9}, "CONVOY_STAGE_LAYERS names 2 stages, CONVOY_DEVICES 1");
  refuse("cpu,cpu", {3, 8}, "CONVOY_STAGE_LAYERS 3,8 adds up to 11 layers");
  refuse("0,0,0,0,0,0,0,0,0,0,0,0,0", {}, "CONVOY_DEVICES names 13 stages");
}

TEST(MakeStagePlan, StageLayersAreHonouredExactly) {
  PlanRequest request = request_for("cpu,cpu,cpu");
  request.stage_layers = {1, 10, 1};
  const auto plan = make_stage_plan(standin_config(), request);
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].layers, (LayerRange{0, 1}));
  EXPECT_EQ(plan.stages[1].layers, (LayerRange{1, 11}));
  EXPECT_EQ(plan.stages[2].layers, (LayerRange{11, 12}));
}

TEST(MakeStagePlan, RankDeviceAndMemoryBelongTogether) {
  const ModelConfig config = config_27b();
  const StageLimits limits{
      .max_context_tokens = 4096, .page_groups = 64, .kv_dtype = KvDtype::bf16};
  const auto plan = make_stage_plan(config, request_for("3,1"));
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

TEST(MakeStagePlan, CapacityIsTheLineThroughThePlansBytes) {
  PlanRequest request = request_for("0,1,2", 1000);
  request.lanes = 4;
  const StagePlan plan = make_stage_plan(config_27b(), request);
  EXPECT_EQ(plan.limits.page_groups, 64);
  EXPECT_TRUE(plan.fits());
  for (const StageAssignment& stage : plan.stages) {
    EXPECT_EQ(stage.capacity.pages_min, 16);
    EXPECT_EQ(stage.capacity.bytes_at(64), stage.memory.total()) << stage.rank;
    EXPECT_EQ(stage.capacity.bytes_per_page * 64, stage.memory.kv_bytes) << stage.rank;
  }
}

TEST(MakeStagePlan, ASmallCardGetsFewerLayersAndBothHoldTheSamePages) {
  const ModelConfig config = config_27b();
  PlanRequest request = request_for("0,1", 65536);
  request.split_by = SplitBy::memory;
  request.memory = {{"cuda:0", uint64_t{24} << 30}, {"cuda:1", uint64_t{48} << 30}};
  const StagePlan plan = make_stage_plan(config, request);
  ASSERT_TRUE(plan.fits());
  EXPECT_EQ(plan.limits.page_groups, 1024);
  EXPECT_LT(plan.stages[0].layers.size(), 25);
  for (const DeviceNeed& device : plan.devices)
    EXPECT_LE(device.need.bytes_at(1024), *device.memory.available_bytes);
  request.memory.clear();
  EXPECT_GT(make_stage_plan(config, request).stages[0].layers.size(), 25);
}

TEST(MakeStagePlan, LinksCountForTheStageThatTheyAreSaidToBeOf) {
  PlanRequest request = request_for("0,1");
  request.stage_layers = {6, 6};
  const StagePlan without = make_stage_plan(standin_config(), request);
  request.link_bytes = [](const StageLimits&, int rank) { return rank == 0 ? 100U : 7000U; };
  const StagePlan with = make_stage_plan(standin_config(), request);
  for (const size_t rank : {0U, 1U}) {
    const uint64_t bytes = rank == 0 ? 100 : 7000;
    EXPECT_EQ(with.stages[rank].memory.link_bytes, bytes);
    EXPECT_EQ(with.stages[rank].memory.total(), without.stages[rank].memory.total() + bytes);
    EXPECT_EQ(with.devices[rank].need.bytes_min, without.devices[rank].need.bytes_min + bytes);
  }
}

TEST(MakeStagePlan, ByWeightMemoryOnlyCountsWhereItBinds) {
  const ModelConfig config = standin_config();
  PlanRequest request = request_for("cpu,cpu,cpu");
  const auto even = ranges_of(make_stage_plan(config, request));
  request.memory.assign(3, {"cpu", uint64_t{1} << 30});
  EXPECT_EQ(ranges_of(make_stage_plan(config, request)), even);
  // The same stages on devices of their own, the first one too small for its even part.
  const StagePlan plan = make_stage_plan(config, request);
  request.memory = {{"a", plan.stages[0].memory.total() - 1}, {"b", {}}, {"c", {}}};
  const StagePlan bound = make_stage_plan(config, request);
  EXPECT_TRUE(bound.fits());
  EXPECT_LT(bound.stages[0].layers.size(), even[0].size());
}

TEST(MakeStagePlan, StagesOnOneDeviceShareItsBytes) {
  const ModelConfig config = standin_config();
  PlanRequest request = request_for("cpu,cpu");
  const StagePlan free = make_stage_plan(config, request);
  const uint64_t both = free.stages[0].memory.total() + free.stages[1].memory.total();
  ASSERT_NE(free.stages[0].memory.total(), free.stages[1].memory.total());
  request.stage_layers = {free.stages[0].layers.size(), free.stages[1].layers.size()};
  request.memory.assign(2, {"cpu", both});
  const StagePlan exact = make_stage_plan(config, request);
  EXPECT_TRUE(exact.fits());
  ASSERT_EQ(exact.devices.size(), 1U);
  EXPECT_EQ(exact.devices[0].need.bytes_min, both);
  request.memory.assign(2, {"cpu", both - 1});
  EXPECT_FALSE(make_stage_plan(config, request).fits());
}

TEST(MakeStagePlan, TwoStagesOnOneCardAreDealtHalfOfItEach) {
  PlanRequest request = request_for("0,0,1", 8192);
  request.split_by = SplitBy::memory;
  const DeviceMemory small{"cuda:0", uint64_t{24} << 30};
  request.memory = {small, small, {"cuda:1", uint64_t{48} << 30}};
  const StagePlan plan = make_stage_plan(config_27b(), request);
  EXPECT_TRUE(plan.fits());
  ASSERT_EQ(plan.devices.size(), 2U);
  EXPECT_GT(plan.stages[2].memory.total(),
            plan.stages[0].memory.total() + plan.stages[1].memory.total());
}

TEST(MakeStagePlan, PagesAreWhatFitsAtMostWhatTheLanesCanUse) {
  const ModelConfig config = standin_config();
  PlanRequest request = request_for("cpu", 1024);
  request.lanes = 4;
  const StagePlan all = make_stage_plan(config, request);
  EXPECT_EQ(all.limits.page_groups, 64);
  const CapacityCurve curve = all.stages[0].capacity;
  for (const int pages : {16, 17, 40, 63}) {
    request.memory = {{"cpu", curve.bytes_at(pages + 1) - 1}};
    const StagePlan plan = make_stage_plan(config, request);
    EXPECT_TRUE(plan.fits());
    EXPECT_EQ(plan.limits.page_groups, pages);
    EXPECT_LE(plan.stages[0].memory.total(), *request.memory[0].available_bytes);
  }
  // A capacity that was asked for is all or nothing.
  request.memory = {{"cpu", curve.bytes_at(40)}};
  request.kv_capacity_tokens = 40 * 64;
  EXPECT_TRUE(make_stage_plan(config, request).fits());
  EXPECT_EQ(make_stage_plan(config, request).limits.page_groups, 40);
  request.kv_capacity_tokens = 40 * 64 + 1;
  EXPECT_FALSE(make_stage_plan(config, request).fits());
  request.memory.clear();
  request.kv_capacity_tokens = 100 * 64;
  EXPECT_EQ(make_stage_plan(config, request).limits.page_groups, 100);
}

TEST(MakeStagePlan, SpeedGivesAFastDeviceMoreWeight) {
  PlanRequest request = request_for("0,1", 1024);
  request.split_by = SplitBy::speed;
  request.speeds = {1000, 3000};
  const StagePlan plan = make_stage_plan(config_27b(), request);
  const double ratio = static_cast<double>(plan.stages[1].memory.weight_bytes) /
                       static_cast<double>(plan.stages[0].memory.weight_bytes);
  EXPECT_NEAR(ratio, 3.0, 0.25);
}

TEST(MakeStagePlan, EqualCardsAreDealtAlikeWhateverAFewBytesAreFree) {
  PlanRequest request = request_for("0,1,2,3", 8192);
  request.split_by = SplitBy::memory;
  request.memory.assign(4, {"", uint64_t{79} << 30});
  for (size_t i = 0; i < 4; ++i) request.memory[i].device = std::to_string(i);
  const auto even = ranges_of(make_stage_plan(config_27b(), request));
  *request.memory[2].available_bytes -= 300 << 20;
  EXPECT_EQ(ranges_of(make_stage_plan(config_27b(), request)), even);
}

class RefusalTest : public testing::Test {
 protected:
  const ModelConfig config_ = config_27b();
  PlanRequest request_ = request_for("0,1", 262144);
};

TEST_F(RefusalTest, NamesDeviceBothNumbersAndTheLargestContext) {
  request_.memory = {{"cuda:0", uint64_t{80} << 30}, {"cuda:1", uint64_t{1} << 30}};
  request_.stage_layers = {60, 4};
  const StagePlan plan = make_stage_plan(config_, request_);
  ASSERT_FALSE(plan.fits());
  const std::string refusal = plan_refusal(config_, request_, plan);
  EXPECT_THAT(refusal, AllOf(HasSubstr("cuda:1"), HasSubstr("262144 tokens"),
                             HasSubstr(std::to_string(plan.devices[1].need.bytes_min) + " bytes"),
                             HasSubstr("1073741824 are available"), HasSubstr("no context fits")));
  EXPECT_EQ(largest_context_tokens(config_, request_), 0);
}

TEST_F(RefusalTest, TheLargestContextFitsAndOnePageMoreDoesNot) {
  request_.memory = {{"cuda:0", uint64_t{32} << 30}, {"cuda:1", uint64_t{32} << 30}};
  const StagePlan plan = make_stage_plan(config_, request_);
  ASSERT_FALSE(plan.fits());
  const int largest = largest_context_tokens(config_, request_);
  EXPECT_GT(largest, 8192);
  EXPECT_THAT(plan_refusal(config_, request_, plan),
              HasSubstr("the largest context that fits is " + std::to_string(largest)));
  request_.max_context_tokens = largest;
  EXPECT_TRUE(make_stage_plan(config_, request_).fits());
  request_.max_context_tokens = largest + 1;
  EXPECT_FALSE(make_stage_plan(config_, request_).fits());
}

TEST_F(RefusalTest, NamesTheLargestCapacityWhereTheContextFits) {
  request_.max_context_tokens = 1000;
  request_.lanes = 4;
  request_.memory = {{"cuda:0", uint64_t{32} << 30}, {"cuda:1", uint64_t{32} << 30}};
  request_.names.kv_capacity = "CONVOY_KV_CAPACITY";
  for (const std::vector<int>& layers : {std::vector<int>{}, std::vector<int>{31, 33}}) {
    request_.stage_layers = layers;
    request_.kv_capacity_tokens = 1 << 24;
    const int largest = largest_kv_capacity_tokens(config_, request_);
    EXPECT_GT(largest, 8192);
    EXPECT_THAT(plan_refusal(config_, request_, make_stage_plan(config_, request_)),
                AllOf(HasSubstr("; the largest CONVOY_KV_CAPACITY that fits is " +
                                std::to_string(largest) + " tokens"),
                      Not(HasSubstr("largest context"))));
    request_.kv_capacity_tokens = largest;
    EXPECT_TRUE(make_stage_plan(config_, request_).fits());
    request_.kv_capacity_tokens = largest + 1;
    EXPECT_FALSE(make_stage_plan(config_, request_).fits());
    EXPECT_EQ(largest_kv_capacity_tokens(config_, request_), largest) << "one page group less";
  }
}

TEST_F(RefusalTest, NamesTheLargestContextWhereNoCapacityHoldsTheOneAskedFor) {
  request_.memory = {{"cuda:0", uint64_t{32} << 30}, {"cuda:1", uint64_t{32} << 30}};
  request_.kv_capacity_tokens = 1 << 24;
  EXPECT_EQ(largest_kv_capacity_tokens(config_, request_), 0);
  EXPECT_THAT(plan_refusal(config_, request_, make_stage_plan(config_, request_)),
              HasSubstr("; the largest context that fits is " +
                        std::to_string(largest_context_tokens(config_, request_)) + " tokens"));
}

TEST_F(RefusalTest, WhereNothingIsKnownOrLimitedTheModelsContextFits) {
  EXPECT_EQ(largest_context_tokens(config_, request_), 262144);
}

// A deal of everything to the larger device would be no help to who reads the plan.
TEST_F(RefusalTest, APlanThatDoesNotFitIsAnEvenDeal) {
  request_.memory = {{"cuda:0", uint64_t{4} << 30}, {"cuda:1", uint64_t{4} << 30}};
  request_.split_by = SplitBy::memory;
  const StagePlan plan = make_stage_plan(config_, request_);
  EXPECT_FALSE(plan.fits());
  const auto first = static_cast<double>(plan.stages[0].memory.total());
  EXPECT_NEAR(first / static_cast<double>(plan.stages[1].memory.total()), 1.0, 0.05);
  EXPECT_EQ(plan.limits.page_groups, 4096);
}

}  // namespace
}  // namespace convoy
