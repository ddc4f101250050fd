// SIGKILL of a stage worker or of the coordinator while loading, in prefill and in decode.
#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

constexpr int kStages = 3;
constexpr const char* kFourTokens = ", there was a";  // what is shown before decode step 3

struct WorkerKill {
  std::string phase;
  int killed;
  int held;
  std::string hold() const {
    return std::to_string(held) + ":" + phase + (phase == "prefill" ? ":0" : ":3");
  }
};

void PrintTo(const WorkerKill& kill, std::ostream* out) {
  *out << "rank " << kill.killed << " while " << kill.hold() << " is held";
}

std::vector<WorkerKill> worker_kills() {
  std::vector<WorkerKill> kills;
  for (const char* phase : {"load", "prefill", "decode"}) {
    for (const int killed : {1, 2}) {
      for (const int held : {0, 1, 2}) kills.push_back({phase, killed, held});
    }
  }
  return kills;
}

class WorkerKillTest : public ConvoyTest, public ::testing::WithParamInterface<WorkerKill> {};

TEST_P(WorkerKillTest, EndsTheRunNamingTheStageAndLeavesNothing) {
  const WorkerKill& kill = GetParam();
  Process coordinator(held_generate(cpus(kStages), kill.hold()));
  await_state(kill.held, "held");
  const pid_t victim = stage(kill.killed).pid;
  const std::vector<pid_t> workers = children_of(coordinator.pid());
  ASSERT_THAT(workers, ::testing::SizeIs(kStages - 1));
  ASSERT_THAT(workers, ::testing::Contains(victim));

  send_signal(victim, SIGKILL);
  const Ended ended = coordinator.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  const std::string line = error_line(ended.err);
  EXPECT_THAT(line, ::testing::HasSubstr("stage " + std::to_string(kill.killed) + " (pid " +
                                         std::to_string(victim) + ", device cpu)"));
  EXPECT_THAT(line, ::testing::HasSubstr("killed by signal 9 (Killed)"));
  if (kill.killed == kill.held) {
    EXPECT_THAT(line, ::testing::ContainsRegex("its last log line: .*held at a test point"));
  } else if (kill.phase != "load") {
    EXPECT_THAT(
        line, ::testing::ContainsRegex("its last log line: .*layers \\[[0-9]+, [0-9]+\\) loaded"));
  }
  EXPECT_EQ(ended.out, kill.phase == "decode" ? kFourTokens : "");
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Phases, WorkerKillTest, ::testing::ValuesIn(worker_kills()),
                         [](const auto& test) {
                           return test.param.phase + "OfRank" + std::to_string(test.param.killed) +
                                  "Held" + std::to_string(test.param.held);
                         });

using PacedKillTest = ConvoyTest;

TEST_F(PacedKillTest, ALostStageEndsTheWaitForATokenThatIsNotDue) {
  Process coordinator(
      generate({"--devices", cpus(2), "-p", kPrompt, "--pace", "0.1", "--instance", "paced"}));
  ASSERT_TRUE(eventually([&] { return !coordinator.out().empty(); }));
  send_signal(stage(1, "paced").pid, SIGKILL);
  const Ended ended = coordinator.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("stage 1 (pid "));
}

using WorkerKillJsonTest = ConvoyTest;

TEST_F(WorkerKillJsonTest, JsonSaysThatTheEngineDied) {
  Process coordinator(held_generate(cpus(2), "1:decode:3", {"--json"}));
  send_signal(await_state(1, "held").pid, SIGKILL);
  const Ended ended = coordinator.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  const json::value object = json::parse(ended.out);
  EXPECT_EQ(object.at("error").at("code").as_string(), "engine_died");
  EXPECT_THAT(std::string(object.at("error").at("message").as_string()),
              ::testing::HasSubstr("stage 1 (pid "));
}

struct CoordinatorKill {
  std::string phase;
  int held;
};

void PrintTo(const CoordinatorKill& kill, std::ostream* out) {
  *out << "rank " << kill.held << " held in " << kill.phase;
}

class CoordinatorKillTest : public ConvoyTest,
                            public ::testing::WithParamInterface<CoordinatorKill> {};

TEST_P(CoordinatorKillTest, WorkersEndAndTheNextCommandSweepsTheFolder) {
  const auto& [phase, held] = GetParam();
  Process coordinator(held_generate(
      cpus(kStages), std::to_string(held) + ":" + phase + (phase == "prefill" ? ":0" : ":3"),
      {"--instance", "victim"}));
  await_state(held, "held");
  const std::vector<pid_t> workers = children_of(coordinator.pid());
  ASSERT_THAT(workers, ::testing::SizeIs(kStages - 1));
  coordinator.signal(SIGKILL);
  EXPECT_EQ(coordinator.wait().signal, SIGKILL);
  EXPECT_TRUE(gone_within(workers, stretched(1)));
  EXPECT_THAT(leftover_folders(), ::testing::ElementsAre("victim"));

  if (held == 0) {
    const Ended answer = run(convoy({"health"}));
    EXPECT_EXIT_CODE(answer, 1);
    EXPECT_THAT(answer.err, ::testing::HasSubstr("no instance is running"));
  } else {
    // The name is free again, too.
    EXPECT_EXIT_CODE(run(generate({"--quiet", "-p", kPrompt, "-n", "1", "--instance", "victim"})),
                     0);
  }
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(
    Phases, CoordinatorKillTest,
    ::testing::Values(CoordinatorKill{"load", 0}, CoordinatorKill{"load", 2},
                      CoordinatorKill{"prefill", 0}, CoordinatorKill{"prefill", 1},
                      CoordinatorKill{"decode", 0}, CoordinatorKill{"decode", 2}),
    [](const auto& test) { return test.param.phase + "Held" + std::to_string(test.param.held); });

}  // namespace
}  // namespace convoy::testing
