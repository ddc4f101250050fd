#include "coordinator/workers/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/exit_code.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;
constexpr int kPatienceMs = 30'000;

class ChildProcessTest : public testing::Test {
 protected:
  ChildProcess start(std::vector<std::string> arguments, std::vector<int> descriptors = {}) {
    return ChildProcess::spawn({.program = CHILD_REPORT,
                                .arguments = std::move(arguments),
                                .descriptors = std::move(descriptors),
                                .stderr_log = log()});
  }
  fs::path log() const { return directory_.path() / "log"; }
  /// What the child reported under `key`, in order.
  std::vector<std::string> reported(const std::string& key) const {
    std::vector<std::string> values;
    std::ifstream in(log());
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(key + " ")) values.push_back(line.substr(key.size() + 1));
    }
    return values;
  }
  static ChildExit wait(ChildProcess& child) {
    const auto exit = child.reap_for(kPatienceMs);
    EXPECT_TRUE(exit.has_value());
    return exit.value_or(ChildExit{});
  }

  TemporaryDirectory directory_;
};

TEST_F(ChildProcessTest, ArgumentsArriveUnchanged) {
  ChildProcess child = start({"report", "--flag", "two words", "", "$HOME;*"});
  EXPECT_EQ(wait(child).code, 0);
  EXPECT_THAT(reported("argument"),
              ElementsAre(CHILD_REPORT, "report", "--flag", "two words", "", "$HOME;*"));
}

TEST_F(ChildProcessTest, OnlyTheGivenDescriptorsAreOpen) {
  const fs::path a = directory_.path() / "a";
  const fs::path b = directory_.path() / "b";
  const UniqueFd first(::open(a.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd second(::open(b.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  // Descriptors without close-on-exec, low and high: what a careless library leaves open.
  const UniqueFd careless(::open("/dev/zero", O_RDWR));
  const UniqueFd high(::fcntl(careless.get(), F_DUPFD, 700));
  ChildProcess child = start({"report"}, {second.get(), first.get(), second.get()});
  EXPECT_EQ(wait(child).code, 0);
  EXPECT_THAT(reported("fd"), testing::UnorderedElementsAre(
                                  "0 /dev/null", "1 /dev/null", "2 " + log().native(),
                                  "3 " + b.native(), "4 " + a.native(), "5 " + b.native()));
}

// Targets 3, 4, … are where this process has its own descriptors: each source must be read before
// it is overwritten.
TEST_F(ChildProcessTest, SourcesThatAreEachOthersTargetsDoNotMix) {
  std::vector<UniqueFd> files;
  std::vector<int> numbers;
  std::vector<std::string> expected{"0 /dev/null", "1 /dev/null", "2 " + log().native()};
  for (int i = 0; i < 8; ++i) {
    const fs::path path = directory_.path() / ("f" + std::to_string(i));
    files.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  for (int i = 7; i >= 0; --i) {  // highest number first, so that they cross
    numbers.push_back(files[static_cast<size_t>(i)].get());
    expected.push_back(std::to_string(3 + 7 - i) + " " +
                       (directory_.path() / ("f" + std::to_string(i))).native());
  }
  ChildProcess child = start({"report"}, numbers);
  EXPECT_EQ(wait(child).code, 0);
  EXPECT_THAT(reported("fd"), testing::UnorderedElementsAreArray(expected));
}

TEST_F(ChildProcessTest, AParentWithoutStdinAndStdoutStillGetsTheChildsLog) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(0);
    ::close(1);
    ChildProcess child = start({"report"});
    ::_exit(child.reap_for(kPatienceMs) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(reported("fd"),
              testing::UnorderedElementsAre("0 /dev/null", "1 /dev/null", "2 " + log().native()));
}

TEST_F(ChildProcessTest, EnvironmentIsInheritedWithoutOurVariables) {
  ::setenv("CONVOY_TEST_HOLD", "1:load:0", 1);
  ::setenv("CONVOY_", "x", 1);
  ::setenv("CONVOYS", "kept", 1);
  ::setenv("OTHER_CONVOY_X", "kept", 1);
  ChildProcess child = start({"report"});
  EXPECT_EQ(wait(child).code, 0);
  const auto variables = reported("variable");
  EXPECT_THAT(variables, Not(Contains(StartsWith("CONVOY_"))));
  EXPECT_THAT(variables, AllOf(Contains("CONVOYS=kept"), Contains("OTHER_CONVOY_X=kept"),
                               Contains(StartsWith("PATH="))));
  for (const char* name : {"CONVOY_TEST_HOLD", "CONVOY_", "CONVOYS", "OTHER_CONVOY_X"})
    ::unsetenv(name);
}

TEST_F(ChildProcessTest, GivenVariablesReplaceInheritedOnes) {
  ::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  ::setenv("CUDA_VISIBLE_DEVICES_2", "kept", 1);
  ChildProcess child =
      ChildProcess::spawn({.program = CHILD_REPORT,
                           .arguments = {"report"},
                           .descriptors = {},
                           .environment = {"CUDA_VISIBLE_DEVICES=GPU-b,GPU-a", "NEW=1=2"},
                           .stderr_log = log()});
  EXPECT_EQ(wait(child).code, 0);
  const auto variables = reported("variable");
  EXPECT_THAT(variables,
              AllOf(Contains("CUDA_VISIBLE_DEVICES=GPU-b,GPU-a"), Contains("NEW=1=2"),
                    Contains("CUDA_VISIBLE_DEVICES_2=kept"), Contains(StartsWith("PATH="))));
  EXPECT_THAT(variables, Not(Contains("CUDA_VISIBLE_DEVICES=0,1")));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("CUDA_VISIBLE_DEVICES_2");
}

TEST_F(ChildProcessTest, StartsInItsOwnSessionWithDefaultSignalsAndAnEmptyMask) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&blocked, number);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto pipe_before = ::signal(SIGPIPE, SIG_IGN);
  const auto user_before = ::signal(SIGUSR2, SIG_IGN);
  ChildProcess child = start({"report"});
  ::signal(SIGPIPE, pipe_before);
  ::signal(SIGUSR2, user_before);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(wait(child).code, 0);
  EXPECT_THAT(reported("session"), ElementsAre("own"));
  EXPECT_THAT(reported("SigBlk"), ElementsAre("0"));
  // posix_spawn leaves the two signals that glibc keeps for itself ignored, numbers 32 and 33.
  constexpr uint64_t kOfGlibc = uint64_t{3} << 31;
  const auto ignored = reported("SigIgn");
  ASSERT_EQ(ignored.size(), 1U);
  EXPECT_EQ(std::stoull(ignored[0]) & ~kOfGlibc, 0U) << ignored[0];
}

TEST_F(ChildProcessTest, ExitCodesAndSignalsAreToldApart) {
  ChildProcess seven = start({"exit:7"});
  const ChildExit exit = wait(seven);
  EXPECT_FALSE(exit.signalled);
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(describe(exit), "exited with code 7");
  for (const int number : {SIGSEGV, SIGKILL, SIGABRT}) {
    ChildProcess child = start({"signal:" + std::to_string(number)});
    const ChildExit killed = wait(child);
    EXPECT_TRUE(killed.signalled);
    EXPECT_EQ(killed.code, number);
  }
  EXPECT_EQ(describe({true, SIGKILL}), "killed by signal 9 (Killed)");
}

TEST_F(ChildProcessTest, ReapingWaitsTellsAgainAndLeavesNoZombie) {
  ChildProcess child = start({"sleep"});
  const pid_t pid = child.pid();
  EXPECT_FALSE(child.try_reap().has_value());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(child.reap_for(100).has_value());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(95));
  child.signal(SIGTERM);
  EXPECT_EQ(wait(child).code, SIGTERM);
  EXPECT_EQ(child.try_reap()->code, SIGTERM);
  EXPECT_EQ(child.reap_for(0)->code, SIGTERM);
  child.signal(SIGKILL);  // nothing to hit
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ChildProcessTest, ASignalDoesNotCutTheWaitShort) {
  ChildProcess child = start({"sleep"});
  const auto before = ::signal(SIGUSR1, [](int) {});
  const pthread_t waiting = pthread_self();
  std::thread disturber([&] {
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      pthread_kill(waiting, SIGUSR1);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(child.reap_for(300).has_value());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(295));
  disturber.join();
  ::signal(SIGUSR1, before);
  child.signal(SIGKILL);
  wait(child);
}

TEST_F(ChildProcessTest, OldLogsAreContinuedForTheOwnerAlone) {
  std::ofstream(log()) << "before\n";
  ::chmod(log().c_str(), 0600);
  ChildProcess child = start({"report"});
  wait(child);
  std::string first;
  std::getline(std::ifstream(log()), first);
  EXPECT_EQ(first, "before");
  fs::remove(log());
  ChildProcess again = start({"report"});
  wait(again);
  struct stat info {};
  ASSERT_EQ(::stat(log().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

std::string spawn_error(const fs::path& program, const fs::path& log) {
  try {
    ChildProcess child = ChildProcess::spawn(
        {.program = program, .arguments = {}, .descriptors = {}, .stderr_log = log});
    child.reap_for(kPatienceMs);
  } catch (const StartError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST_F(ChildProcessTest, AProgramThatCannotBeStartedIsNamed) {
  const fs::path missing = directory_.path() / "missing";
  EXPECT_THAT(spawn_error(missing, log()),
              AllOf(HasSubstr(missing.native()), HasSubstr("No such file")));
  const fs::path plain = directory_.path() / "plain";
  std::ofstream(plain) << "text";
  ::chmod(plain.c_str(), 0644);
  EXPECT_THAT(spawn_error(plain, log()),
              AllOf(HasSubstr(plain.native()), HasSubstr("Permission denied")));
  ::chmod(plain.c_str(), 0755);  // executable, but of no known format
  EXPECT_THAT(spawn_error(plain, log()),
              AllOf(HasSubstr(plain.native()), HasSubstr("Exec format error")));
  EXPECT_THAT(spawn_error(directory_.path(), log()), HasSubstr(directory_.path().native()));
}

TEST_F(ChildProcessTest, ALogThatCannotBeWrittenIsNamed) {
  const fs::path bad = directory_.path() / "none" / "log";
  EXPECT_THAT(spawn_error(CHILD_REPORT, bad), HasSubstr(bad.native()));
  const fs::path link = directory_.path() / "link";  // a link could point at anything
  fs::create_symlink(directory_.path() / "target", link);
  EXPECT_THAT(spawn_error(CHILD_REPORT, link), HasSubstr(link.native()));
  EXPECT_FALSE(fs::exists(directory_.path() / "target"));
}

}  // namespace
}  // namespace convoy
