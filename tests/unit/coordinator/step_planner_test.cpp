#include "coordinator/engine/step_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace convoy {
namespace {

using testing::HasSubstr;

Status plan(std::vector<Sequence*> sequences, std::vector<int> columns,
            PositionClass position_class, PlannedStep& step) {
  return plan_step(sequences, columns, position_class, step);
}

TEST(PlanStep, PrefillHasOneColumnPerTokenAndTheDeltasOfItsPages) {
  PagePool pool(8);
  Sequence sequence(pool, 2, 1000);
  PlannedStep step;
  ASSERT_TRUE(plan({&sequence}, {100}, PositionClass::prompt, step).ok());
  EXPECT_EQ(step.kind, StepKind::prefill);
  EXPECT_EQ(step.position_class, PositionClass::prompt);
  EXPECT_EQ(step.width, 100);
  EXPECT_EQ(step.lane_count(), 1);
  EXPECT_EQ(step.columns(), 100);
  ASSERT_EQ(step.control.size(), 100U);
  for (int32_t c = 0; c < 100; ++c) {
    const ControlRow& row = step.control[static_cast<size_t>(c)];
    EXPECT_EQ(row.cache_position, c);
    for (const int32_t rope : row.rope_position) EXPECT_EQ(rope, c);
    EXPECT_EQ(row.kv_row, 2);
    EXPECT_EQ(row.valid_columns, 100);
    EXPECT_EQ(row.state_source, -1);
    EXPECT_EQ(row.state_destination, 5);
  }
  ASSERT_EQ(step.deltas.size(), 2U);
  EXPECT_EQ(step.deltas[1].kv_row, 2);
  EXPECT_EQ(step.deltas[1].block, 1);
  EXPECT_EQ(step.lanes[0].pending_fold, -1);
  EXPECT_EQ(step.lanes[0].reserved, 0);
}

TEST(PlanStep, ALaterStepForgetsTheOneBefore) {
  PagePool pool(8);
  Sequence sequence(pool, 0, 1000);
  PlannedStep step;
  ASSERT_TRUE(plan({&sequence}, {64}, PositionClass::prompt, step).ok());
  const int32_t slot = step.lanes[0].state_destination;
  ASSERT_TRUE(plan({&sequence}, {1}, PositionClass::generated, step).ok());
  EXPECT_EQ(step.kind, StepKind::decode);
  EXPECT_EQ(step.position_class, PositionClass::generated);
  ASSERT_EQ(step.control.size(), 1U);
  EXPECT_EQ(step.control[0].cache_position, 64);
  EXPECT_EQ(step.control[0].state_source, slot);
  EXPECT_EQ(step.deltas.size(), 1U);
  ASSERT_TRUE(plan({&sequence}, {1}, PositionClass::generated, step).ok());
  EXPECT_TRUE(step.deltas.empty());
  EXPECT_EQ(step.control[0].cache_position, 65);
}

TEST(PlanStep, LanesOfDifferentLengthsMakeARectangle) {
  PagePool pool(16);
  Sequence first(pool, 0, 1000);
  Sequence second(pool, 3, 1000);
  PlannedStep step;
  ASSERT_TRUE(plan({&first}, {10}, PositionClass::prompt, step).ok());
  ASSERT_TRUE(plan({&second}, {63}, PositionClass::prompt, step).ok());
  ASSERT_TRUE(plan({&first, &second}, {1, 4}, PositionClass::generated, step).ok());
  EXPECT_EQ(step.width, 4);
  EXPECT_EQ(step.columns(), 8);
  ASSERT_EQ(step.control.size(), 8U);
  EXPECT_EQ(step.lanes[0].valid_columns, 1);
  EXPECT_EQ(step.lanes[1].valid_columns, 4);
  EXPECT_EQ(step.lanes[1].cache_position, 63);
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(step.control[static_cast<size_t>(c)].valid_columns, 1);
    EXPECT_EQ(step.control[static_cast<size_t>(4 + c)].cache_position, 63 + c);
    EXPECT_EQ(step.control[static_cast<size_t>(4 + c)].kv_row, 3);
  }
  ASSERT_EQ(step.deltas.size(), 1U);  // position 64 of the second lane
  EXPECT_EQ(step.deltas[0].kv_row, 3);
  EXPECT_EQ(step.deltas[0].block, 1);
}

// What the kernels and check_step() rely on: lane and columns say the same.
TEST(PlanStep, EveryColumnRepeatsItsLane) {
  PagePool pool(64);
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<Sequence*> sequences;
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    owners.push_back(std::make_unique<Sequence>(pool, lane, 500));
    sequences.push_back(owners.back().get());
  }
  PlannedStep step;
  for (int round = 0; round < 5; ++round) {
    std::vector<int> columns;
    for (int lane = 0; lane < kMaxLanes; ++lane) columns.push_back(1 + (lane + round) % 5);
    ASSERT_TRUE(plan(sequences, columns, PositionClass::generated, step).ok());
    ASSERT_EQ(step.control.size(), static_cast<size_t>(kMaxLanes * step.width));
    for (int c = 0; c < step.columns(); ++c) {
      const ControlRow& row = step.control[static_cast<size_t>(c)];
      const StepLane& lane = step.lanes[static_cast<size_t>(c / step.width)];
      ASSERT_EQ(row.kv_row, lane.kv_row);
      ASSERT_EQ(row.cache_position, lane.cache_position + c % step.width);
      ASSERT_EQ(row.valid_columns, lane.valid_columns);
      ASSERT_EQ(row.state_source, lane.state_source);
      ASSERT_EQ(row.state_destination, lane.state_destination);
    }
  }
}

TEST(PlanStep, FullContextAndExhaustedPoolAreErrors) {
  PagePool pool(2);
  Sequence sequence(pool, 0, 100);
  Sequence other(pool, 1, 1000);
  PlannedStep step;
  EXPECT_THAT(plan({&sequence}, {101}, PositionClass::prompt, step).error(),
              HasSubstr("do not fit the context of 100"));
  EXPECT_THAT(plan({&other}, {129}, PositionClass::prompt, step).error(),
              HasSubstr("page groups needed"));
  EXPECT_EQ(pool.used(), 0);
  EXPECT_TRUE(plan({&sequence}, {100}, PositionClass::prompt, step).ok());
}

// A step that cannot be planned for one lane must leave the others where they were.
TEST(PlanStep, NoLaneIsExtendedWhenALaterOneHasNoRoom) {
  PagePool pool(3);
  Sequence first(pool, 0, 1000);
  Sequence second(pool, 1, 1000);
  Sequence full(pool, 2, 64);
  PlannedStep step;
  ASSERT_TRUE(plan({&first}, {64}, PositionClass::prompt, step).ok());
  ASSERT_TRUE(plan({&full}, {64}, PositionClass::prompt, step).ok());
  const int32_t slot = step.lanes[0].state_destination;
  // One page group is free and both lanes begin one; then a lane whose context is full.
  EXPECT_THAT(plan({&first, &second}, {1, 1}, PositionClass::generated, step).error(),
              HasSubstr("2 more page groups needed, 1 of 3 free"));
  EXPECT_THAT(plan({&first, &full}, {1, 1}, PositionClass::generated, step).error(),
              HasSubstr("do not fit the context of 64"));
  EXPECT_EQ(first.length(), 64);
  EXPECT_EQ(second.length(), 0);
  EXPECT_EQ(pool.used(), 2);
  ASSERT_TRUE(plan({&first}, {1}, PositionClass::generated, step).ok());
  EXPECT_EQ(step.lanes[0].cache_position, 64);
  EXPECT_EQ(step.lanes[0].state_source, slot - 2 * full.lane());
}

TEST(PlanStep, NoLanesTooManyLanesOrNoColumnsAreBrokenInvariants) {
  PagePool pool(64);
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<Sequence*> sequences;
  for (int lane = 0; lane <= kMaxLanes; ++lane) {
    owners.push_back(std::make_unique<Sequence>(pool, lane, 500));
    sequences.push_back(owners.back().get());
  }
  PlannedStep step;
  EXPECT_DEATH((void)plan({}, {}, PositionClass::prompt, step), "lanes of a step");
  EXPECT_DEATH((void)plan({sequences[0]}, {1, 1}, PositionClass::prompt, step), "lanes of a step");
  EXPECT_DEATH(
      (void)plan(sequences, std::vector<int>(kMaxLanes + 1, 1), PositionClass::prompt, step),
      "lanes of a step");
  EXPECT_DEATH((void)plan({sequences[0]}, {0}, PositionClass::prompt, step), "count");
}

}  // namespace
}  // namespace convoy
