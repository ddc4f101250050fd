#include "shared/ipc/step_entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/ipc/verify_step.h"

namespace convoy {
namespace {

using testing::HasSubstr;

constexpr StepExpectation kExpected{
    .sequence = 0, .epoch = 5, .max_columns = 8, .max_deltas = 4, .limits = kVerifyStepLimits};

// An entry outside a ring.
struct Step {
  Step() : lanes(kMaxLanes), deltas(kExpected.max_deltas), control(kExpected.max_columns) {
    header.epoch = kExpected.epoch;
  }
  StepEntry entry() { return {&header, lanes.data(), deltas.data(), control.data()}; }
  Status check() const {
    return check_step({&header, lanes.data(), deltas.data(), control.data()}, kExpected);
  }

  StepHeader header{};
  std::vector<StepLane> lanes;
  std::vector<BlockTableDelta> deltas;
  std::vector<ControlRow> control;
};

struct Corruption {
  std::string expected;  ///< in the error: the field and the value
  std::function<void(const StepEntry&)> damage;
};

const std::vector<Corruption>& corruptions() {
  static const std::vector<Corruption> list = {
      {"epoch is 4", [](auto& e) { e.header->epoch = 4; }},
      {"sequence is 1", [](auto& e) { e.header->sequence = 1; }},
      {"kind is 10", [](auto& e) { e.header->kind = static_cast<StepKind>(10); }},
      {"position_class is 2", [](auto& e) { e.header->position_class = PositionClass{2}; }},
      {"lanes is 17", [](auto& e) { e.header->lanes = 17; }},
      {"lanes is 0", [](auto& e) { e.header->lanes = 0; }},
      {"width is 9", [](auto& e) { e.header->width = 9; }},
      {"width is 4294967295", [](auto& e) { e.header->width = ~0U; }},
      {"width is 0", [](auto& e) { e.header->width = 0; }},
      {"lanes * width is 10", [](auto& e) { e.header->width = 5; }},
      {"delta_count is 5", [](auto& e) { e.header->delta_count = 5; }},
      {"flags is 8", [](auto& e) { e.header->flags = 8 | kStepEndsPrompt; }},
      {"reserved[3] is 1", [](auto& e) { e.header->reserved[3] = 1; }},
      {"lanes[1].kv_row is 8", [](auto& e) { e.lanes[1].kv_row = 8; }},
      {"lanes[0].kv_row is -1", [](auto& e) { e.lanes[0].kv_row = -1; }},
      {"lanes[1].valid_columns is 4", [](auto& e) { e.lanes[1].valid_columns = 4; }},
      {"lanes[1].valid_columns is -1", [](auto& e) { e.lanes[1].valid_columns = -1; }},
      {"lanes[0].cache_position is 1022", [](auto& e) { e.lanes[0].cache_position = 1022; }},
      {"lanes[0].cache_position is -1", [](auto& e) { e.lanes[0].cache_position = -1; }},
      {"lanes[0].state_source is 12", [](auto& e) { e.lanes[0].state_source = 12; }},
      {"lanes[0].state_source is -2", [](auto& e) { e.lanes[0].state_source = -2; }},
      {"lanes[1].state_destination is 12", [](auto& e) { e.lanes[1].state_destination = 12; }},
      {"lanes[1].state_destination is -2", [](auto& e) { e.lanes[1].state_destination = -2; }},
      {"lanes[0].state_destination is -1", [](auto& e) { e.lanes[0].state_destination = -1; }},
      {"lanes[1].pending_fold is -2", [](auto& e) { e.lanes[1].pending_fold = -2; }},
      {"lanes[1].record_buffer is 2", [](auto& e) { e.lanes[1].record_buffer = 2; }},
      {"lanes[1].reserved is 1", [](auto& e) { e.lanes[1].reserved = 1; }},
      {"deltas[1].kv_row is 8", [](auto& e) { e.deltas[1].kv_row = 8; }},
      {"deltas[0].block is 16", [](auto& e) { e.deltas[0].block = 16; }},
      {"deltas[1].page is 100", [](auto& e) { e.deltas[1].page = 100; }},
      {"deltas[1].page is -1", [](auto& e) { e.deltas[1].page = -1; }},
      {"control[5].kv_row is 3", [](auto& e) { e.control[5].kv_row = 3; }},
      {"control[5].valid_columns is 3", [](auto& e) { e.control[5].valid_columns = 3; }},
      {"control[1].state_source is 0", [](auto& e) { e.control[1].state_source = 0; }},
      {"control[1].state_destination is 9", [](auto& e) { e.control[1].state_destination = 9; }},
      {"control[4].cache_position is 107", [](auto& e) { e.control[4].cache_position = 107; }},
      {"control[0].rope_position[0] is -1", [](auto& e) { e.control[0].rope_position[0] = -1; }},
      {"control[0].rope_position[1] is -1", [](auto& e) { e.control[0].rope_position[1] = -1; }},
      {"control[3].rope_position[2] is -9", [](auto& e) { e.control[3].rope_position[2] = -9; }},
  };
  return list;
}

TEST(StepEntry, EveryCorruptFieldIsRefusedByNameAndValue) {
  for (const Corruption& corruption : corruptions()) {
    Step step;
    fill_verify_step(step.entry());
    ASSERT_TRUE(step.check().ok()) << step.check().error();
    const StepEntry entry = step.entry();
    corruption.damage(entry);
    const Status status = step.check();
    ASSERT_FALSE(status.ok()) << corruption.expected << " was accepted";
    EXPECT_THAT(status.error(), HasSubstr(corruption.expected + ", allowed"));
  }
}

TEST(StepEntry, PositionsOfDeadColumnsAreNotLookedAt) {
  Step step;
  fill_verify_step(step.entry());
  step.control[5].cache_position = -5;
  step.control[5].rope_position[1] = -5;
  EXPECT_TRUE(step.check().ok()) << step.check().error();
}

TEST(StepEntry, StepsThatRunNoLayersNeedNoLanesAndOthersDo) {
  for (uint32_t kind = 0; kind < kStepKinds; ++kind) {
    Step step;
    step.header.kind = static_cast<StepKind>(kind);
    EXPECT_EQ(step.check().ok(), !step_runs_layers(step.header.kind)) << kind;
  }
}

TEST(StepEntry, CopiesMayNameWhatLiesInHostMemoryAndNothingBeyond) {
  for (const auto& [kind, last] :
       {std::pair{StepKind::copy_pages, kVerifyStepLimits.pages + 5},
        std::pair{StepKind::copy_states, kVerifyStepLimits.state_slots + 3}}) {
    StepExpectation expected = kExpected;
    expected.limits.host_pages = 6;
    expected.limits.host_slots = 4;
    Step step;
    step.header.kind = kind;
    step.header.delta_count = 1;
    const auto check = [&](const BlockTableDelta& delta) {
      step.deltas[0] = delta;
      return check_step({&step.header, step.lanes.data(), step.deltas.data(), step.control.data()},
                        expected);
    };
    EXPECT_TRUE(check({0, last, 0}).ok());
    EXPECT_TRUE(check({0, 0, last}).ok());
    EXPECT_THAT(check({0, last + 1, 0}).error(), HasSubstr("deltas[0].block is"));
    EXPECT_THAT(check({0, 0, last + 1}).error(), HasSubstr("deltas[0].page is"));
    EXPECT_THAT(check({0, -1, 0}).error(), HasSubstr("deltas[0].block is -1"));
    EXPECT_THAT(check({1, 0, 0}).error(), HasSubstr("deltas[0].kv_row is 1"));
  }
}

TEST(StepEntry, ASequenceAtItsLastPositionsIsAccepted) {
  Step step;
  fill_verify_step(step.entry());
  step.lanes[0].cache_position = kVerifyStepLimits.positions - 3;
  for (int i = 0; i < 3; ++i) step.control[i].cache_position = kVerifyStepLimits.positions - 3 + i;
  EXPECT_TRUE(step.check().ok()) << step.check().error();
}

}  // namespace
}  // namespace convoy
