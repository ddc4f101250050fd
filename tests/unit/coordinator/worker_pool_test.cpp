#include "coordinator/workers/worker_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/unit/coordinator/pool_fixture.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

bool gone(pid_t pid) {
  return ::kill(pid, 0) == -1 && errno == ESRCH;
}

class WorkerPoolTest : public PoolFixture {
 protected:
  fs::path worker(const std::string& mode) {
    fs::path link = directory_.path() / ("fake-worker-" + mode);
    if (!fs::exists(fs::symlink_status(link))) fs::create_symlink(FAKE_WORKER, link);
    return link;
  }
  void spawn(WorkerPool& pool, const std::string& mode, int stages = 2) {
    pool.spawn(worker(mode), directory_.path(), plan_of(stages));
  }
  void load(WorkerPool& pool, int stages = 2) {
    pool.begin_load(plan_of(stages), {});
    pool.wait_loaded([] {});
  }
  void open_links(WorkerPool& pool, size_t workers) {
    const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
    pool.open_links(std::vector<WorkerPool::WorkerLinks>(workers, {.ring_fd = file.get(),
                                                                   .incoming_fd = file.get(),
                                                                   .outgoing_fd = file.get(),
                                                                   .ring_bytes = 1,
                                                                   .incoming_bytes = 2,
                                                                   .outgoing_bytes = 3}),
                    {}, [] {});
  }
  /// Starts one worker of `mode`, goes as far as it comes, and says how that ended. The pool is
  /// gone afterwards.
  WorkerFailure failure_of(const std::string& mode, WorkerTimeouts timeouts = {}) {
    pid_t pid = -1;
    WorkerFailure failure{ExitCode::done, "(no failure)"};
    {
      WorkerPool pool(timeouts);
      spawn(pool, mode);
      pid = pool.status().front().pid;
      try {
        load(pool);
        open_links(pool, 1);
        (void)pool.ask_health(10'000);
        pool.check();
      } catch (const FatalError& error) {
        failure = {error.code(), error.what()};
      }
    }
    EXPECT_TRUE(gone(pid));
    EXPECT_THAT(failure.message,
                HasSubstr("stage 1 (pid " + std::to_string(pid) + ", device cpu)"));
    EXPECT_THAT(failure.message, HasSubstr("its last log line: mode " + mode));
    return failure;
  }
};

TEST_F(WorkerPoolTest, WellBehavedWorkersLoadOpenLinksAnswerAndEndAtOnce) {
  const auto begin = Clock::now();
  std::vector<WorkerStatus> status;
  {
    WorkerPool pool;
    spawn(pool, "good", 4);
    std::atomic<int> ticks{0};
    pool.begin_load(plan_of(4), {});
    pool.wait_loaded([&] { ++ticks; });
    EXPECT_GE(ticks, 1);
    open_links(pool, 3);
    const auto answers = pool.ask_health(10'000);
    status = pool.status();
    ASSERT_EQ(answers.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(answers[i].has_value());
      EXPECT_EQ(answers[i]->pid(), status[i].pid);
      EXPECT_EQ(status[i].phase, WorkerPhase::links_open);
      EXPECT_EQ(status[i].total_bytes, 10U);
      EXPECT_EQ(status[i].loaded->device().threads(), 77U);
    }
    EXPECT_FALSE(pool.failure().has_value());
    EXPECT_EQ(pool.cancelled(), 0);
    pool.check();
    pool.end();
    for (const WorkerStatus& s : status) EXPECT_TRUE(gone(s.pid));
    EXPECT_FALSE(pool.failure().has_value()) << "an end that was asked for is no failure";
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(WorkerPoolTest, AWorkerSeesItsOwnCardAndThenItsNeighbours) {
  StagePlan plan = plan_of(4);
  for (StageAssignment& stage : plan.stages) {
    const std::string rank = std::to_string(stage.rank.value);
    stage.device = {DeviceKind::cuda, "cuda:" + rank, "GPU-" + rank};
  }
  WorkerPool pool;
  pool.spawn(worker("good"), directory_.path(), plan);
  // Greeted: the worker's own program runs, with its own environment.
  pool.begin_load(plan, {});
  const std::vector<std::string> expected{"GPU-1,GPU-0,GPU-2", "GPU-2,GPU-1,GPU-3",
                                          "GPU-3,GPU-2,GPU-0"};
  for (size_t i = 0; i < expected.size(); ++i) {
    std::ifstream file("/proc/" + std::to_string(pool.status()[i].pid) + "/environ");
    std::vector<std::string> seen;
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable.starts_with("CUDA_VISIBLE_DEVICES=")) seen.push_back(variable.substr(21));
    }
    EXPECT_THAT(seen, testing::ElementsAre(expected[i]));
  }
}

TEST_F(WorkerPoolTest, BytesThatAreNoFrameAreStartFailed) {
  const WorkerFailure failure = failure_of("garbage");
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("broke its control connection"), HasSubstr("frame length")));
}

TEST_F(WorkerPoolTest, AFrameThatIsNoMessageIsStartFailed) {
  const WorkerFailure failure = failure_of("malformed");
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, HasSubstr("sent a malformed message of 4 bytes"));
}

TEST_F(WorkerPoolTest, AnEmptyFrameIsStartFailed) {
  const WorkerFailure failure = failure_of("empty");
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, HasSubstr("frame length 0"));
}

TEST_F(WorkerPoolTest, AnOversizedFrameIsStartFailed) {
  const WorkerFailure failure = failure_of("oversized");
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, HasSubstr("frame length 1048577"));
}

TEST_F(WorkerPoolTest, BytesThatAreNoFrameAfterHelloMeanTheEngineDied) {
  const WorkerFailure failure = failure_of("late-garbage");
  EXPECT_EQ(failure.code, ExitCode::engine_died);
  EXPECT_THAT(failure.message, HasSubstr("frame length 4294967295"));
}

TEST_F(WorkerPoolTest, AnotherProtocolVersionIsStartFailedWithBothNumbers) {
  const WorkerFailure failure = failure_of("version");
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("protocol version 99 (build fake)"),
                                     HasSubstr("this coordinator version 3")));
}

TEST_F(WorkerPoolTest, AStrangerABusyWorkerAndAMissingHelloAreStartFailed) {
  for (const auto& [mode, what] : {std::pair("role", "says it is a 'printer'"),
                                   std::pair("busy", "serves another coordinator"),
                                   std::pair("unannounced", "did not begin with a Hello")}) {
    const WorkerFailure failure = failure_of(mode);
    EXPECT_EQ(failure.code, ExitCode::start_failed) << mode;
    EXPECT_THAT(failure.message, HasSubstr(what));
  }
}

TEST_F(WorkerPoolTest, AWorkerThatClosesItsConnectionAndLivesIsNamed) {
  const WorkerFailure failure = failure_of("closes");
  EXPECT_EQ(failure.code, ExitCode::engine_died);
  EXPECT_THAT(failure.message, HasSubstr("closed its control connection but is still alive"));
}

TEST_F(WorkerPoolTest, AnExitCodeIsNamedHoweverItRacesTheSocket) {
  for (int i = 0; i < 20;
       ++i) {  // the unread Hello resets the connection; the socket or the pidfd may tell first
    const WorkerFailure failure = failure_of("exits7");
    EXPECT_EQ(failure.code, ExitCode::engine_died);
    EXPECT_THAT(failure.message, HasSubstr("died: exited with code 7"));
  }
}

TEST_F(WorkerPoolTest, ASegfaultInsideAFrameIsNamedAsThat) {
  const WorkerFailure failure = failure_of("segfaults");
  EXPECT_EQ(failure.code, ExitCode::engine_died);
  EXPECT_THAT(failure.message, HasSubstr("died: killed by signal 11 (Segmentation fault)"));
}

TEST_F(WorkerPoolTest, TheLastWordsOfAWorkerThatExitsWin) {
  for (int i = 0; i < 20; ++i) {
    const WorkerFailure failure = failure_of("model-error");
    EXPECT_EQ(failure.code, ExitCode::start_failed);
    EXPECT_THAT(failure.message, HasSubstr("model-00002.safetensors is damaged"));
  }
}

TEST_F(WorkerPoolTest, LosingALinkOrAStageWhileServingMeansTheEngineDied) {
  const WorkerFailure link = failure_of("link-error");
  EXPECT_EQ(link.code, ExitCode::engine_died);
  EXPECT_THAT(link.message, HasSubstr("a transfer came twice"));
  const WorkerFailure death = failure_of("dies-serving");
  EXPECT_EQ(death.code, ExitCode::engine_died);
  EXPECT_THAT(death.message, HasSubstr("died: exited with code 7"));
}

TEST_F(WorkerPoolTest, AWorkerThatNeverSaysHelloIsGivenUp) {
  const auto begin = Clock::now();
  const WorkerFailure failure = failure_of("silent", {.hello_ms = 500});
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, HasSubstr("did not say Hello within 0.5 s"));
}

TEST_F(WorkerPoolTest, AWorkerThatNeverOpensItsLinksIsGivenUp) {
  const WorkerFailure failure = failure_of("no-links", {.links_ms = 300});
  EXPECT_EQ(failure.code, ExitCode::start_failed);
  EXPECT_THAT(failure.message, HasSubstr("did not open its links within 0.3 s"));
}

TEST_F(WorkerPoolTest, WhoDoesNotAnswerAHealthQuestionIsLeftOut) {
  WorkerPool pool;
  spawn(pool, "no-health");
  load(pool);
  const auto answers = pool.ask_health(100);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_FALSE(answers[0].has_value());
}

TEST_F(WorkerPoolTest, AnAdmissionCommandIsAnsweredByEachWorkerThatGetsOne) {
  WorkerPool pool;
  spawn(pool, "good", 3);
  load(pool, 3);
  proto::AdmissionCommand command;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    command.set_sequence(sequence);
    const auto answers = pool.exchange({sequence == 2 ? nullptr : &command, &command});
    ASSERT_TRUE(answers.ok()) << answers.error();
    ASSERT_EQ(answers.value().size(), 2U);
    EXPECT_EQ(answers.value()[0].sequence(), sequence == 2 ? 0 : sequence);  // never an old one
    EXPECT_EQ(answers.value()[1].sequence(), sequence);
  }
}

TEST_F(WorkerPoolTest, AnAdmissionCommandWithoutAnswerIsAnErrorThatNamesTheStage) {
  proto::AdmissionCommand command;
  {
    WorkerPool pool({.admission_ms = 100});
    spawn(pool, "no-admission");
    load(pool);
    EXPECT_THAT(pool.exchange({&command}).error(), HasSubstr("stage 1 (pid "));
    EXPECT_THAT(pool.exchange({&command}).error(), HasSubstr("within 0.1 s"));
  }
  WorkerPool pool;
  spawn(pool, "dies-admitting");
  load(pool);
  const auto begin = Clock::now();
  EXPECT_THAT(pool.exchange({&command}).error(), HasSubstr("died: exited with code 7"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(WorkerPoolTest, AWorkerThatIgnoresShutdownIsTerminated) {
  pid_t pid = -1;
  const auto begin = Clock::now();
  {
    WorkerPool pool;
    spawn(pool, "needs-term");
    load(pool);
    pid = pool.status().front().pid;
  }
  EXPECT_TRUE(gone(pid));
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(2900));
}

TEST_F(WorkerPoolTest, AWorkerThatIgnoresShutdownAndSigtermIsKilledInTime) {
  pid_t pid = -1;
  Clock::time_point begin;
  {
    WorkerPool pool;
    spawn(pool, "stubborn");
    load(pool);
    pid = pool.status().front().pid;
    begin = Clock::now();
  }
  const auto took = Clock::now() - begin;
  EXPECT_TRUE(gone(pid));
  EXPECT_GE(took, std::chrono::milliseconds(2900));
  EXPECT_LT(took, std::chrono::milliseconds(4500));
}

TEST_F(WorkerPoolTest, OneFailureEndsTheOthersToo) {
  std::vector<WorkerStatus> status;
  {
    WorkerPool pool;
    StagePlan plan = plan_of(3);
    spawn(pool, "good", 3);
    load(pool, 3);
    status = pool.status();
    ::kill(status[1].pid, SIGKILL);
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!pool.failure() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(pool.failure().has_value());
    EXPECT_EQ(pool.failure()->code, ExitCode::engine_died);
    EXPECT_THAT(pool.failure()->message,
                AllOf(HasSubstr("stage 2 (pid " + std::to_string(status[1].pid)),
                      HasSubstr("killed by signal 9")));
    EXPECT_THROW(pool.check(), FatalError);
  }
  for (const WorkerStatus& s : status) EXPECT_TRUE(gone(s.pid));
}

TEST_F(WorkerPoolTest, TheReleaseHookRunsOnceAtTheFirstFailureAndNotAfterItsRemoval) {
  std::atomic<int> calls{0};
  for (const bool removed : {false, true}) {
    calls = 0;
    WorkerPool pool;
    spawn(pool, "good");
    load(pool);
    pool.set_release_hook([&] {
      EXPECT_TRUE(pool.failure().has_value());
      ++calls;
    });
    if (removed) pool.set_release_hook({});
    ::kill(pool.status().front().pid, SIGKILL);
    const auto end = Clock::now() + std::chrono::seconds(removed ? 1 : 20);
    while (calls == 0 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(calls, removed ? 0 : 1);
  }
}

TEST_F(WorkerPoolTest, AMissingProgramIsAStartErrorAndStartsNothing) {
  WorkerPool pool;
  EXPECT_THROW(pool.spawn(directory_.path() / "none", directory_.path(), plan_of(3)), StartError);
  EXPECT_TRUE(pool.status().empty());
}

TEST_F(WorkerPoolTest, AnOrderlyEndFollowsTheFirstSignal) {
  WorkerPool pool;
  spawn(pool, "good");
  load(pool);
  std::atomic<bool> released{false};
  pool.set_release_hook([&] { released = true; });
  ::kill(::getpid(), SIGINT);
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!released && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(released);
  EXPECT_EQ(pool.cancelled(), SIGINT);
  EXPECT_THROW(pool.check(), FatalError);
  EXPECT_FALSE(pool.failure().has_value());
  EXPECT_FALSE(gone(pool.status().front().pid)) << "workers end in order, not by the signal";
}

TEST_F(WorkerPoolTest, ASecondSignalKillsWorkersAndEndsThisProcessByIt) {
  const fs::path note = directory_.path() / "pid";
  const pid_t coordinator = ::fork();
  if (coordinator == 0) {
    WorkerPool pool;
    spawn(pool, "stubborn");
    load(pool);
    std::ofstream(note) << pool.status().front().pid << std::flush;
    ::kill(::getpid(), SIGINT);
    while (pool.cancelled() == 0) ::usleep(1000);
    ::kill(::getpid(), SIGINT);
    ::sleep(20);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(coordinator, &status, 0), coordinator);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  pid_t worker_pid = 0;
  std::ifstream(note) >> worker_pid;
  ASSERT_GT(worker_pid, 0);
  // Its new parent reaps it in its own time: a zombie is dead enough.
  const auto end = Clock::now() + std::chrono::seconds(5);
  const auto dead = [&] {
    if (gone(worker_pid)) return true;
    std::ifstream stat("/proc/" + std::to_string(worker_pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    return text.find(") Z ") != std::string::npos;
  };
  while (!dead() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(dead());
}

}  // namespace
}  // namespace convoy
