// What tests of worker pools begin with.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>

#include "coordinator/workers/worker_pool.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {

inline StagePlan plan_of(int stages) {
  StagePlan plan;
  for (int rank = 0; rank < stages; ++rank)
    plan.stages.push_back({Rank{rank}, {DeviceKind::cpu, "cpu"}, {rank, rank + 1}, {}});
  return plan;
}

inline bool no_child_left() {
  return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

class PoolFixture : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(no_child_left()) << "a worker outlived its pool"; }

  TemporaryDirectory directory_;
};

}  // namespace convoy
