// convoy health tells the truth while loading, generating, after deaths and with nobody there.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

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

// States of StageHealth, as they travel.
constexpr int kStarting = 0, kLoading = 1, kReady = 2, kRunning = 3, kWaiting = 4, kStopping = 5,
              kFailed = 6;

// A socket at which somebody says a state to whoever asks: the first of `states` first, the last
// one for ever. Without states it listens and says nothing.
class FakeStage {
 public:
  FakeStage(const std::filesystem::path& socket, std::vector<int> states,
            std::function<void()> before_answer = {})
      : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.c_str(), socket.native().size());
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    stop_ = UniqueFd(ends[1]);
    if (states.empty()) return;
    thread_ = std::thread([this, states = std::move(states), before = std::move(before_answer),
                           stopped = UniqueFd(ends[0])] { serve(states, before, stopped.get()); });
  }
  FakeStage(const FakeStage&) = delete;
  FakeStage& operator=(const FakeStage&) = delete;
  ~FakeStage() {
    stop_.reset();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void serve(const std::vector<int>& states, const std::function<void()>& before, int stopped) {
    for (size_t asked = 0;; ++asked) {
      pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {stopped, POLLIN, 0}};
      ::poll(fds, 2, -1);
      if (fds[1].revents != 0) return;
      const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (before) before();
      const int state = states[std::min(asked, states.size() - 1)];
      const std::string frame("\x04\0\0\0\x08\x03\x20", 7);  // {protocol_version: 3, state: …}
      const std::string answer = frame + static_cast<char>(state);
      ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd listener_, stop_;
  std::thread thread_;
};

// The folder of an instance that this test holds alive.
class FakeInstance {
 public:
  FakeInstance(const std::filesystem::path& root, const std::string& kind,
               const std::vector<std::pair<int, pid_t>>& members)
      : path(root / "fake") {
    ::mkdir(root.c_str(), 0700);
    ::mkdir(path.c_str(), 0700);
    lock_ = UniqueFd(
        ::open((path / "convoy-instance.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::flock(lock_.get(), LOCK_EX | LOCK_NB), 0);
    json::array list;
    for (const auto& [rank, pid] : members) {
      list.push_back({{"rank", rank},
                      {"pid", pid},
                      {"role", rank == 0 ? "coordinator" : "stage_worker"},
                      {"device", "cpu"},
                      {"uuid", ""},
                      {"layers", {0, 1}}});
    }
    std::ofstream(path / "instance.json")
        << json::object{{"schema", 1}, {"name", "fake"}, {"kind", kind}, {"members", list}};
  }
  FakeInstance(const FakeInstance&) = delete;
  FakeInstance& operator=(const FakeInstance&) = delete;
  ~FakeInstance() { std::filesystem::remove_all(path); }
  void end() { lock_.reset(); }

  const std::filesystem::path path;

 private:
  UniqueFd lock_;
};

pid_t ended_process() {
  Process process({.program = "/bin/true", .arguments = {}, .environment = {}, .input = {}});
  const pid_t pid = process.pid();
  process.wait();
  return pid;
}

// Rank 0 says `root`, one after the other, and rank 1 (`pid`) says nothing: what health makes of
// it.
class SilentStageTest : public HealthTest {
 protected:
  StageState silent_stage(const std::vector<int>& root, pid_t pid, bool listens = false) const {
    const FakeInstance instance(runtime, "run", {{0, ::getpid()}, {1, pid}});
    const FakeStage coordinator(instance.path / "health-0.sock", root);
    std::optional<FakeStage> worker;
    if (listens) worker.emplace(instance.path / "health-1.sock", std::vector<int>{});
    const Ended ended = run(convoy({"health", "--json"}));
    const json::object all = json::parse(ended.out).as_object();
    const json::object answer = all.at("instances").at(0).at("stages").at(1).as_object();
    const bool well = answer.at("well").as_bool();
    EXPECT_EXIT_CODE(ended, well ? 0 : 1);
    EXPECT_EQ(all.at("well").as_bool(), well);
    EXPECT_EQ(answer.contains("problem"), !well);
    return {.rank = 1,
            .pid = pid,
            .state = answer.at("state").as_string().c_str(),
            .well = well,
            .all = answer};
  }
};

TEST_F(SilentStageTest, OfARunThatStopsHasEndedInOrder) {
  for (const bool listens : {false, true}) {
    for (const pid_t pid : {ended_process(), ::getpid()}) {
      const StageState answer = silent_stage({kStopping}, pid, listens);
      EXPECT_TRUE(answer.well);
      EXPECT_EQ(answer.state, "stopping");
    }
  }
}

TEST_F(SilentStageTest, OfARunThatStopsAMomentLaterHasEndedInOrder) {
  const FakeInstance instance(runtime, "run", {{0, ::getpid()}, {1, ended_process()}});
  const FakeStage coordinator(instance.path / "health-0.sock", {kRunning, kStopping});
  EXPECT_EXIT_CODE(run(convoy({"health"})), 0);
}

TEST_F(SilentStageTest, OfARunThatStartsHasNotOpenedItsSocketYet) {
  for (const int root : {kStarting, kLoading}) {
    const StageState answer = silent_stage({root}, ::getpid());
    EXPECT_TRUE(answer.well);
    EXPECT_EQ(answer.state, "starting");
    EXPECT_EQ(silent_stage({root}, ended_process()).state, "dead");
    EXPECT_EQ(silent_stage({root}, ::getpid(), true).state, "not answering");
  }
}

TEST_F(SilentStageTest, OfAPoolThatStartsHasNotOpenedItsSocketYet) {
  const FakeInstance instance(runtime, "pool", {{1, ::getpid()}, {2, ::getpid()}});
  const FakeStage worker(instance.path / "health-1.sock", {kWaiting});
  EXPECT_EQ(stage(2).state, "starting");
  EXPECT_EXIT_CODE(run(convoy({"health"})), 0);
}

TEST_F(SilentStageTest, IsAnAlarmInEveryOtherPhase) {
  EXPECT_EQ(silent_stage({kRunning}, ended_process()).state, "dead");
  EXPECT_EQ(silent_stage({kRunning}, ::getpid(), true).state, "not answering");
  for (const int root : {kReady, kRunning, kFailed})
    EXPECT_EQ(silent_stage({root}, ::getpid()).state, "not answering");
}

TEST_F(SilentStageTest, OfAnInstanceThatEndsMeanwhileIsNoInstance) {
  {
    FakeInstance instance(runtime, "run", {{0, ::getpid()}, {1, ended_process()}});
    const FakeStage coordinator(instance.path / "health-0.sock", {kRunning},
                                [&] { instance.end(); });
    const Ended nobody = run(convoy({"health"}));
    EXPECT_EXIT_CODE(nobody, 1);
    EXPECT_THAT(error_line(nobody.err), ::testing::HasSubstr("no instance is running"));
    EXPECT_EQ(nobody.out, "");
  }
  Process other(held_generate(cpus(2), "1:decode:3", {"--instance", "other"}));
  await_state(1, "held", "other");
  FakeInstance instance(runtime, "run", {{0, ::getpid()}, {1, ended_process()}});
  const FakeStage coordinator(instance.path / "health-0.sock", {kRunning}, [&] { instance.end(); });
  EXPECT_EXIT_CODE(run(convoy({"health"})), 0);
  other.signal(SIGINT);
  other.wait();
}

}  // namespace
}  // namespace convoy::testing
