#include "coordinator/workers/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/exit_code.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX asks for it

namespace convoy {
namespace {

constexpr int kFirstDescriptor = 3;  // after stdin, stdout and stderr

// glibc's pidfd_open wrapper is newer than the oldest libc we run on.
int open_pidfd(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

std::string_view name_of(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

// What this process has, but for our own variables, and `added` in place of what it replaces.
std::vector<char*> child_environment(std::vector<std::string>& added) {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view name = name_of(*variable);
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const std::string& other) {
      return name_of(other) == name;
    });
    if (!replaced && !name.starts_with("CONVOY_")) variables.push_back(*variable);
  }
  for (std::string& variable : added) variables.push_back(variable.data());
  variables.push_back(nullptr);
  return variables;
}

// posix_spawn's two option objects, destroyed whatever happens.
class SpawnOptions {
 public:
  SpawnOptions() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  posix_spawn_file_actions_t* actions() { return &actions_; }
  posix_spawnattr_t* attributes() { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

std::string describe(const ChildExit& exit) {
  if (exit.signalled)
    return fmt::format("killed by signal {} ({})", exit.code, ::strsignal(exit.code));
  return fmt::format("exited with code {}", exit.code);
}

ChildProcess ChildProcess::spawn(const SpawnRequest& request) {
  if (::access(request.program.c_str(), X_OK) != 0) {
    throw StartError(
        fmt::format("stage worker program {}: {}", request.program.native(), std::strerror(errno)));
  }
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const UniqueFd log(::open(request.stderr_log.c_str(),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!null || !log)
    throw StartError(
        fmt::format("cannot write {}: {}", request.stderr_log.native(), std::strerror(errno)));

  // Sources are moved above the target range first, so that no dup2 overwrites a later source: not
  // those of `descriptors`, and not `log` where this process itself was started with a closed
  // stdout.
  const int target_end = kFirstDescriptor + static_cast<int>(request.descriptors.size());
  std::vector<int> inherited{null.get(), null.get(), log.get()};
  inherited.insert(inherited.end(), request.descriptors.begin(), request.descriptors.end());
  std::vector<UniqueFd> sources;
  for (const int fd : inherited) {
    sources.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, target_end));
    if (!sources.back())
      throw StartError(fmt::format("cannot duplicate descriptor {}: {}", fd, std::strerror(errno)));
  }
  SpawnOptions options;
  for (size_t i = 0; i < sources.size(); ++i) {
    posix_spawn_file_actions_adddup2(options.actions(), sources[i].get(), static_cast<int>(i));
  }
  posix_spawn_file_actions_addclosefrom_np(options.actions(), target_end);

  std::vector<std::string> words{request.program.native()};
  words.insert(words.end(), request.arguments.begin(), request.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> added = request.environment;
  std::vector<char*> environment = child_environment(added);

  ChildProcess child;
  const int error = ::posix_spawn(&child.pid_, request.program.c_str(), options.actions(),
                                  options.attributes(), argv.data(), environment.data());
  if (error != 0)
    throw StartError(
        fmt::format("cannot start {}: {}", request.program.native(), std::strerror(error)));
  child.pidfd_.reset(open_pidfd(child.pid_));
  if (!child.pidfd_) {
    const int reason = errno;
    ::kill(child.pid_, SIGKILL);
    ::waitpid(child.pid_, nullptr, 0);
    throw StartError(
        fmt::format("pidfd_open: {} (Linux 5.3 or newer is needed)", std::strerror(reason)));
  }
  return child;
}

void ChildProcess::signal(int number) const {
  // A pidfd never means another process, so this needs no look at exit_, which another thread may
  // be writing.
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

std::optional<ChildExit> ChildProcess::try_reap() {
  if (exit_) return exit_;
  siginfo_t info{};
  if (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return std::nullopt;
  exit_ = ChildExit{info.si_code != CLD_EXITED, info.si_status};
  return exit_;
}

std::optional<ChildExit> ChildProcess::reap_for(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int left_ms = timeout_ms;;) {
    if (const auto exit = try_reap()) return exit;
    // A signal, or a stop and continue, ends poll early.
    pollfd fd{pidfd_.get(), POLLIN, 0};
    if (::poll(&fd, 1, std::max(0, left_ms)) == 0) return try_reap();
    left_ms = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   deadline - std::chrono::steady_clock::now())
                                   .count());
    if (left_ms <= 0) return try_reap();
  }
}

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw StartError(fmt::format("pipe: {}", std::strerror(errno)));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string last_line(const std::filesystem::path& log, int64_t skipped_bytes) {
  std::ifstream in(log);
  in.seekg(skipped_bytes);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

std::string last_words(const std::filesystem::path& log, int64_t skipped_bytes) {
  const std::string last = last_line(log, skipped_bytes);
  return last.empty() ? "" : fmt::format("; its last log line: {}", last);
}

}  // namespace convoy
