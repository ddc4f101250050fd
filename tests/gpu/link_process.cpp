#include "tests/gpu/link_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"

extern char** environ;

namespace convoy::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  UniqueFd read, write;
};
Pipe make_pipe() {
  std::array<int, 2> ends{};
  CONVOY_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

LinkProcess::LinkProcess(const LinkEndTask& task, const SharedRegion& region) {
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  std::vector<std::string> arguments = to_arguments(task);
  arguments.insert(arguments.begin(), {"link-end", kLinkEndFlag});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, region.fd(), kLinkEndFd);
  const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  CONVOY_CHECK(error == 0, "posix_spawn");
  input_ = std::move(input.write);
  output_ = std::move(output.read);
}

LinkProcess::~LinkProcess() {
  kill();
  wait(10'000);
}

std::string LinkProcess::line(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string first = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return first;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{output_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return "";
    std::array<char, 512> bytes{};
    const ssize_t got = ::read(output_.get(), bytes.data(), bytes.size());
    if (got <= 0) return "";
    unread_.append(bytes.data(), static_cast<size_t>(got));
  }
}

void LinkProcess::kill() {
  if (exit_code_ < 0) ::kill(pid_, SIGKILL);
}

int LinkProcess::wait(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (exit_code_ < 0) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (Clock::now() >= deadline) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return exit_code_;
}

}  // namespace convoy::test
