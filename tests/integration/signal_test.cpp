// SIGTERM, Ctrl-C, SIGSTOP, a reader that goes away and an output that is full.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

struct Stop {
  int signal;
  std::string phase;
  int held;
};

void PrintTo(const Stop& stop, std::ostream* out) {
  *out << "signal " << stop.signal << ", rank " << stop.held << " held in " << stop.phase;
}

std::vector<Stop> stops() {
  std::vector<Stop> list;
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const char* phase : {"load", "prefill", "decode"}) {
      for (const int held : {0, 1}) list.push_back({signal, phase, held});
    }
  }
  return list;
}

class StopTest : public ConvoyTest, public ::testing::WithParamInterface<Stop> {};

TEST_P(StopTest, EndsByThatSignalInOrderAndLeavesNothing) {
  const Stop& stop = GetParam();
  Process coordinator(held_generate(
      cpus(3),
      std::to_string(stop.held) + ":" + stop.phase + (stop.phase == "prefill" ? ":0" : ":3"),
      {"--json"}));
  await_state(stop.held, "held");
  coordinator.signal(stop.signal);
  const Ended ended = coordinator.wait(stretched(2));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.signal, stop.signal) << "exit code " << ended.exit_code << "\n" << ended.err;
  expect_nothing_left();

  const json::value object = json::parse(ended.out);
  if (stop.phase == "load") {
    EXPECT_EQ(object.at("error").at("message").as_string(), "cancelled");
  } else {
    EXPECT_EQ(object.at("finish_reason").as_string(), "cancelled");
    EXPECT_EQ(object.at("text").as_string(), stop.phase == "decode" ? ", there was a" : "");
    EXPECT_EQ(object.at("token_ids").as_array().size(), stop.phase == "decode" ? 4U : 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, StopTest, ::testing::ValuesIn(stops()), [](const auto& test) {
  return std::string(test.param.signal == SIGINT ? "Interrupt" : "Terminate") + "In" +
         test.param.phase + "Held" + std::to_string(test.param.held);
});

class SignalTest : public ConvoyTest {
 protected:
  /// `convoy WORDS` for commands without a runtime directory.
  static ProgramCall program(Words words) {
    return {.program = CONVOY_COORDINATOR,
            .arguments = std::move(words),
            .environment = {},
            .input = {}};
  }
};

TEST_F(SignalTest, AStoppedWorkerIsReportedAndCtrlCStillEndsEverything) {
  Process coordinator(held_generate(cpus(3), "0:decode:3"));
  await_state(0, "held");
  const pid_t stopped = stage(1).pid;
  send_signal(stopped, SIGSTOP);
  EXPECT_EQ(await_state(1, "not answering").well, false);
  EXPECT_EQ(stage(2).state, "ready");
  const Ended answer = run(convoy({"health"}));
  EXPECT_EXIT_CODE(answer, 1);
  EXPECT_THAT(answer.out, ::testing::HasSubstr("not answering"));
  EXPECT_LT(answer.took, stretched(1.5));
  coordinator.signal(SIGINT);
  const Ended ended = coordinator.wait(stretched(5));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.signal, SIGINT);
  EXPECT_EQ(ended.out, ", there was a");
}

TEST_F(SignalTest, AStoppedCoordinatorHidesNoWorker) {
  Process coordinator(held_generate(cpus(3), "1:decode:3"));
  await_state(1, "held");
  coordinator.signal(SIGSTOP);
  await_state(0, "not answering");
  EXPECT_EQ(stage(1).state, "held");
  EXPECT_EQ(stage(2).state, "ready");
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);
  coordinator.signal(SIGCONT);
  coordinator.signal(SIGINT);
  EXPECT_EQ(coordinator.wait().signal, SIGINT);
}

TEST_F(SignalTest, CancelledWhileLoadingIsNoFailedStartInJson) {
  ProgramCall call = held_generate(cpus(2), "1:load:1");
  call.arguments.insert(call.arguments.end(), {"--json", "--quiet"});
  Process program(call);
  await_state(1, "held");
  program.signal(SIGINT);
  const Ended ended = program.wait();
  EXPECT_EQ(ended.signal, SIGINT);
  EXPECT_THAT(ended.out, ::testing::HasSubstr(R"("code":"cancelled")"));
}

TEST_F(SignalTest, ASecondCtrlCKillsAtOnce) {
  Process coordinator(held_generate(cpus(3), "0:decode:3", {"--instance", "hasty"}));
  await_state(0, "held");
  const std::vector<pid_t> workers = children_of(coordinator.pid());
  // Ending it in order would take seconds.
  for (const pid_t pid : workers) send_signal(pid, SIGSTOP);
  coordinator.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(alive(coordinator.pid()));
  coordinator.signal(SIGINT);
  const Ended ended = coordinator.wait(stretched(0.5));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.signal, SIGINT);
  EXPECT_TRUE(gone_within(workers, stretched(0.5)));
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);  // sweeps the folder
}

// How the program ends when the reader of its stdout leaves after the first byte.
Ended end_without_reader(ProgramCall call, Seconds limit = stretched(20)) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  call.stdout_fd = writer.get();
  Process program(call);
  writer.reset();
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  reader.reset();
  return program.wait(limit);
}

TEST_F(SignalTest, AReaderThatGoesAwayEndsTheRunQuickly) {
  ProgramCall call =
      generate({"--devices", cpus(3), "-p", kPrompt, "--ignore-eos", "--pace", "50"});
  const Ended ended = end_without_reader(std::move(call), stretched(2));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.signal, SIGPIPE) << "exit code " << ended.exit_code;
}

// A reader that is there and reads nothing: less, or a terminal in which Ctrl-S was typed.
class BlockedReaderTest : public SignalTest {
 protected:
  void SetUp() override {
    SignalTest::SetUp();
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);
    ASSERT_GT(::fcntl(writer_.get(), F_SETPIPE_SZ, 4096), 0);
  }
  // Runs until nothing more goes into the pipe.
  std::unique_ptr<Process> blocked(Words words) {
    ProgramCall call = generate(std::move(words));
    call.stdout_fd = writer_.get();
    auto program = std::make_unique<Process>(call);
    EXPECT_TRUE(eventually([&] {
      pollfd ready{writer_.get(), POLLOUT, 0};
      return ::poll(&ready, 1, 0) == 0;
    }));
    return program;
  }

 private:
  UniqueFd reader_;
  UniqueFd writer_;
};

TEST_F(BlockedReaderTest, OneSignalEndsTheRun) {
  const auto program = blocked({"--devices", cpus(2), "-p", kPrompt, "--ignore-eos", "--quiet"});
  program->signal(SIGTERM);
  const Ended ended = program->wait(stretched(5));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EQ(ended.signal, SIGTERM) << "exit code " << ended.exit_code;
}

TEST_F(BlockedReaderTest, ALostStageEndsTheRun) {
  const auto program = blocked({"--devices", cpus(2), "-p", kPrompt, "--ignore-eos", "--quiet"});
  send_signal(stage(1).pid, SIGKILL);
  const Ended ended = program->wait(stretched(5));
  EXPECT_TRUE(ended.in_time);
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("stage 1 (pid "));
}

TEST_F(SignalTest, AFullOutputIsAnErrorThatIsSaid) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  for (const char* json : {"--json", "--quiet"}) {
    ProgramCall call = generate({"--devices", cpus(2), "-p", kPrompt, "-n", "20", json});
    call.stdout_fd = full.get();
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, 1);
    EXPECT_THAT(ended.err, ::testing::HasSubstr("cannot write to stdout: No space left on device"));
  }
}

TEST_F(SignalTest, AMessageThatCannotBeWrittenChangesNothing) {
  const fs::path prompts = scratch.path() / "prompts";
  write_file(prompts, "Once upon a time\n\n");
  const fs::path chart = scratch.path() / "bench.json";
  struct Case {
    ProgramCall call;
    int code;
    std::optional<std::string> out;
  };
  const std::vector<Case> cases{
      {generate({"-p", kPrompt, "-n", "3"}), 0, ", there was"},
      {generate({"-p", kPrompt, "-m", "/nowhere"}), 1, ""},
      {generate({"-p", kPrompt, "--bogus"}), 2, ""},
      {generate({"--parallel", "2", "-n", "3", "-f", prompts}), 4, ", there was\n\f\n\n\f\n"},
      {convoy({"bench", "-m", bundled_model_path().native(), "--devices", "cpu", "--prompt-lengths",
               "8", "--decode-lengths", "1", "--warm-up", "0", "--repetitions", "1", "--json",
               chart}),
       0, std::nullopt},
      {convoy({"probe", "--devices", "cpu", "--rounds", "1"}), 0, std::nullopt},
      {convoy({"health"}), 1, ""},
      {convoy({"down", "nobody"}), 1, ""},
      {convoy({"up", "pool", "--devices", "tpu"}), 2, ""},
      {program({"tokenize", "-m", "/nowhere", "x"}), 1, ""},
      {program({"state", "show", "/nowhere"}), 1, ""},
      {program({"fly"}), 2, ""}};
  for (const auto& [call, code, out] : cases) {
    for (const char* redirection : {"2>/dev/full", "2>&-"}) {
      const Ended ended = run(redirected(call, redirection));
      EXPECT_EXIT_CODE(ended, code) << call.arguments.front() << " " << redirection;
      if (out) {
        EXPECT_EQ(ended.out, *out) << call.arguments.front() << " " << redirection;
      }
    }
  }
}

// Otherwise the first files that the program opens take their places, and the answer.
TEST_F(SignalTest, EveryCommandEndsByThatSignalWhenNobodyReadsWhatItGives) {
  const std::string model = bundled_model_path().native();
  for (const Words& words :
       {Words{"plan", "-m", model, "--devices", "cpu"},
        Words{"bench", "-m", model, "--devices", "cpu", "--prompt-lengths", "8", "--decode-lengths",
              "0", "--repetitions", "1", "--quiet", "--json", "-"}}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    ::close(ends[0]);
    const UniqueFd writer(ends[1]);
    ProgramCall call = convoy(words);
    call.stdout_fd = writer.get();
    const Ended ended = run(call);
    EXPECT_EQ(ended.signal, SIGPIPE) << words[0] << ": " << ended.err;
  }
}

TEST_F(SignalTest, AClosedDescriptorTakesNoFileOfTheProgram) {
  for (const char* closed : {">&-", "<&- >&-", "<&- >&- 2>&-"}) {
    const Ended ended = run(
        redirected(generate({"--devices", cpus(2), "-p", kPrompt, "-n", "3", "--quiet"}), closed));
    EXPECT_EXIT_CODE(ended, 1) << closed;
    if (std::string(closed).find('2') == std::string::npos) {
      EXPECT_EQ(ended.err, "convoy: cannot write to stdout: Bad file descriptor\n");
    }
  }
  const Ended silent =
      run(redirected(generate({"--devices", cpus(2), "-p", kPrompt, "-n", "3"}), "<&- 2>&-"));
  EXPECT_EXIT_CODE(silent, 0);
  EXPECT_EQ(silent.out, ", there was");
}

// A worker that somebody starts by hand keeps its sockets out of them, too.
TEST_F(SignalTest, AStageWorkerOpensItsClosedDescriptors) {
  const fs::path socket = scratch.path() / "health.sock";
  const Process worker(redirected(
      {.program = fs::path(CONVOY_COORDINATOR).parent_path() / "convoy-stage-worker",
       .arguments = {"--rank", "1", "--listen", scratch.path() / "stage.sock", "--health", socket},
       .environment = {},
       .input = {}},
      "<&- >&- 2>&-"));
  ASSERT_TRUE(eventually([&] { return fs::exists(socket); }));
  for (const char* fd : {"0", "1", "2"})
    EXPECT_EQ(fs::read_symlink(fs::path("/proc") / std::to_string(worker.pid()) / "fd" / fd),
              "/dev/null");
}

// Where stdout and stderr are one pipe, it is stdout that says so.
TEST_F(SignalTest, AReaderOfBothOutputsThatGoesAwayEndsTheRunBySigpipe) {
  ProgramCall call = redirected(generate({"-p", kPrompt, "-n", "200", "--ignore-eos"}), "2>&1");
  const Ended ended = end_without_reader(std::move(call));
  EXPECT_EQ(ended.signal, SIGPIPE) << "exit code " << ended.exit_code;
}

TEST_F(SignalTest, WorkersHaveASessionOfTheirOwnSoThatCtrlCReachesTheCoordinatorAlone) {
  Process coordinator(held_generate(cpus(3), "1:decode:3"));
  await_state(1, "held");
  for (const pid_t worker : children_of(coordinator.pid())) {
    EXPECT_EQ(::getsid(worker), worker);
    EXPECT_NE(::getpgid(worker), ::getpgid(coordinator.pid()));
  }
  coordinator.signal(SIGINT);
  EXPECT_EQ(coordinator.wait().signal, SIGINT);
}

// A descriptor that leaks into a worker keeps files, sockets and terminals of others open.
TEST_F(SignalTest, WorkersInheritNoDescriptorNoVariableAndNoBlockedSignal) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // without close-on-exec: the coordinator inherits it
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const auto link_of = [](const std::string& path) {
    return std::filesystem::read_symlink(path).native();
  };
  const std::string leaked = link_of("/proc/self/fd/" + std::to_string(ends[0]));
  Process coordinator(held_generate(cpus(3), "1:decode:3"));
  await_state(1, "held");
  const auto holds_it = [&](pid_t pid) {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      if (link_of(entry.path().native()) == leaked) return true;
    }
    return false;
  };
  EXPECT_TRUE(holds_it(coordinator.pid()));
  for (const pid_t worker : children_of(coordinator.pid())) {
    EXPECT_FALSE(holds_it(worker));
    const std::string folder = "/proc/" + std::to_string(worker);
    EXPECT_EQ(link_of(folder + "/fd/0"), "/dev/null");
    EXPECT_EQ(link_of(folder + "/fd/1"), "/dev/null");
    EXPECT_EQ(read_file(folder + "/environ").find("CONVOY_"), std::string::npos);
    EXPECT_NE(read_file(folder + "/status").find("SigBlk:\t0000000000000000"), std::string::npos);
  }
  coordinator.signal(SIGINT);
  EXPECT_EQ(coordinator.wait().signal, SIGINT);
}

}  // namespace
}  // namespace convoy::testing
