// convoy health tells the truth while loading, generating, after deaths and with nobody there.
#include <unistd.h>

#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using HealthTest = ConvoyTest;

uint64_t number(const StageState& stage, const char* field) {
  return stage.all.at(field).to_number<uint64_t>();
}

TEST_F(HealthTest, SaysHowFarLoadingIs) {
  Process coordinator(held_generate(cpus(3), "1:load:5"));
  const StageState held = await_state(1, "held");
  EXPECT_GT(number(held, "loaded_bytes"), 0U);
  EXPECT_LT(number(held, "loaded_bytes"), number(held, "total_load_bytes"));
  const StageState ready = await_state(2, "ready");
  EXPECT_EQ(number(ready, "loaded_bytes"), number(ready, "total_load_bytes"));
  // Rank 0 has loaded its own layers and waits for the others.
  ASSERT_TRUE(eventually([&] {
    const StageState root = stage(0);
    return number(root, "total_load_bytes") > 0 &&
           number(root, "loaded_bytes") == number(root, "total_load_bytes");
  }));
  const Ended answer = run(convoy({"health"}));
  EXPECT_EXIT_CODE(answer, 0);
  EXPECT_THAT(answer.out, ::testing::HasSubstr("loading 100%"));
  EXPECT_THAT(answer.out, ::testing::HasSubstr("held"));
  coordinator.signal(SIGINT);
  coordinator.wait();
}

TEST_F(HealthTest, ShowsStagesLayersAndStepsWhileGenerating) {
  Process coordinator(held_generate(cpus(3), "2:decode:6", {"--stage-layers", "5,4,3"}));
  await_state(2, "held");
  const std::vector<std::pair<int, int>> layers{{0, 5}, {5, 9}, {9, 12}};
  for (int rank = 0; rank < 3; ++rank) {
    const StageState s = stage(rank);
    EXPECT_TRUE(s.well);
    EXPECT_TRUE(alive(s.pid));
    EXPECT_EQ(to_ids(s.all.at("layers")),
              (std::vector<int>{layers[static_cast<size_t>(rank)].first,
                                layers[static_cast<size_t>(rank)].second}));
    // One prompt and six tokens are done; stage 1 has done its part of the seventh.
    EXPECT_EQ(number(s, "steps"), rank == 1 ? 8U : 7U) << rank;
    EXPECT_GT(number(s, "weight_bytes"), 1'000'000U);
    EXPECT_GT(number(s, "sent_bytes"), 0U);
  }
  EXPECT_EQ(stage(0).pid, coordinator.pid());
  EXPECT_EQ(stage(0).all.at("page_groups_used").to_number<int>(), 1);
  EXPECT_EXIT_CODE(run(convoy({"health"})), 0);
  coordinator.signal(SIGINT);
  coordinator.wait();
}

TEST_F(HealthTest, SaysThatAWorkerDiedWhileItsCoordinatorIsStopped) {
  Process coordinator(held_generate(cpus(3), "2:decode:3"));
  await_state(2, "held");
  const pid_t victim = stage(1).pid;
  coordinator.signal(SIGSTOP);
  send_signal(victim, SIGKILL);
  const StageState answer = stage(1);
  EXPECT_FALSE(answer.well);
  EXPECT_EQ(answer.state, "dead");
  EXPECT_EQ(stage(0).state, "not answering");
  EXPECT_EQ(stage(2).state, "held");
  EXPECT_EQ(health().at("well").as_bool(), false);
  coordinator.signal(SIGCONT);
  EXPECT_EXIT_CODE(coordinator.wait(), 3);
}

TEST_F(HealthTest, FailsWithNobodyThere) {
  const Ended nobody = run(convoy({"health"}));
  EXPECT_EXIT_CODE(nobody, 1);
  EXPECT_THAT(error_line(nobody.err),
              ::testing::HasSubstr("no instance is running (looked in " + runtime.native()));
  EXPECT_FALSE(std::filesystem::exists(runtime)) << "asking creates nothing";
  const Ended as_json = run(convoy({"health", "--json"}));
  EXPECT_EXIT_CODE(as_json, 1);
  EXPECT_EQ(json::parse(as_json.out).at("error").at("code").as_string(), "start_failed");
}

TEST_F(HealthTest, AsksTheNamedInstanceOnly) {
  Process one(held_generate(cpus(2), "1:decode:3", {"--instance", "one"}));
  Process two(held_generate(cpus(2), "1:decode:3", {"--instance", "two"}));
  await_state(1, "held", "one");
  const pid_t stopped = await_state(1, "held", "two").pid;
  send_signal(stopped, SIGSTOP);
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);
  EXPECT_EXIT_CODE(run(convoy({"health", "--instance", "one"})), 0);
  EXPECT_EXIT_CODE(run(convoy({"health", "--instance", "two"})), 1);
  const Ended unknown = run(convoy({"health", "--instance", "three"}));
  EXPECT_EXIT_CODE(unknown, 1);
  EXPECT_THAT(error_line(unknown.err), ::testing::HasSubstr("no instance 'three' is running"));
  EXPECT_EQ(health({"--instance", "two"}).at("instances").as_array().size(), 1U);
  EXPECT_EQ(health().at("instances").as_array().size(), 2U);
  send_signal(stopped, SIGCONT);
  for (Process* run : {&one, &two}) {
    run->signal(SIGTERM);
    EXPECT_EQ(run->wait().signal, SIGTERM);
  }
}

}  // namespace
}  // namespace convoy::testing
