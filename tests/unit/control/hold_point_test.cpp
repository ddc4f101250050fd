#include "shared/control/hold_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/exit_code.h"

namespace convoy {
namespace {

// How many times `reach` blocked: `released` is asked only by a process that is held.
int times_held(HoldPoint& hold, int rank, HoldPhase phase, int calls) {
  HealthState health;
  int held = 0;
  for (int i = 0; i < calls; ++i) {
    hold.reach(rank, phase, health, [&] {
      ++held;
      EXPECT_EQ(health.state(), proto::StageHealth::HELD);
      return true;
    });
  }
  return held;
}

TEST(HoldPoint, HoldsOnceAtItsRankPhaseAndStep) {
  HoldPoint hold("2:decode:3");
  EXPECT_EQ(times_held(hold, 1, HoldPhase::decode, 10), 0);
  EXPECT_EQ(times_held(hold, 2, HoldPhase::prefill, 10), 0);
  EXPECT_EQ(times_held(hold, 2, HoldPhase::load, 10), 0);
  EXPECT_EQ(times_held(hold, 2, HoldPhase::decode, 3), 0);
  EXPECT_EQ(times_held(hold, 2, HoldPhase::decode, 1), 1);
  EXPECT_EQ(times_held(hold, 2, HoldPhase::decode, 10), 0);
}

TEST(HoldPoint, EveryPhaseParses) {
  for (const auto& [text, phase] :
       {std::pair("0:load:0", HoldPhase::load), std::pair("0:prefill:0", HoldPhase::prefill),
        std::pair("0:decode:0", HoldPhase::decode)}) {
    HoldPoint hold(text);
    EXPECT_EQ(times_held(hold, 0, phase, 2), 1) << text;
  }
}

TEST(HoldPoint, NothingIsHeldUnlessAskedFor) {
  HoldPoint none;
  HoldPoint empty("");
  for (const HoldPhase phase :
       {HoldPhase::none, HoldPhase::load, HoldPhase::prefill, HoldPhase::decode}) {
    EXPECT_EQ(times_held(none, 0, phase, 3), 0);
    EXPECT_EQ(times_held(empty, 0, phase, 3), 0);
  }
}

TEST(HoldPoint, MalformedTextIsAUsageErrorThatQuotesIt) {
  for (const char* text : {"1", "1:", ":", "::", "1:load", "1:load:", ":load:0", "1::0", "1:none:0",
                           "1:Load:0", "-1:load:0", "1:load:-1", "x:load:0", "1:load:x",
                           "1:load:0:", "1:load:0 ", " 1:load:0", "1:load:99999999999999999999"}) {
    try {
      const HoldPoint hold(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("CONVOY_TEST_HOLD: '" + std::string(text) + "'"));
    }
  }
}

TEST(HoldPoint, HealthSaysHeldUntilReleased) {
  HoldPoint hold("1:prefill:0");
  HealthState health;
  health.set_state(proto::StageHealth::RUNNING);
  std::atomic<bool> released{false};
  std::atomic<bool> passed{false};
  std::thread process([&] {
    hold.reach(1, HoldPhase::prefill, health, [&] { return released.load(); });
    passed = true;
  });
  while (health.state() != proto::StageHealth::HELD) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(passed);
  released = true;
  process.join();
  EXPECT_EQ(health.state(), proto::StageHealth::RUNNING);
}

}  // namespace
}  // namespace convoy
