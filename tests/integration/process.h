// Starts programs, watches them and ends them, and reads from /proc who is alive. Knows nothing of
// Convoy.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace convoy::testing {

using Seconds = std::chrono::duration<double>;

/// Times in tests are meant for an optimised build; instrumented ones get more.
Seconds stretched(double seconds);

struct ProgramCall {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  /// Added to this process's own environment, of which CONVOY_ variables and XDG_RUNTIME_DIR are
  /// left out.
  std::map<std::string, std::string> environment;
  std::optional<std::string> input;  ///< through a pipe, at most 64 KiB; none: /dev/null
  int stdin_fd = -1;                 ///< in place of `input`; the caller keeps its own
  int stdout_fd = -1;                ///< in place of capturing stdout; the caller keeps its own
};

/// How a program ended.
struct Ended {
  bool in_time = true;  ///< false: it was killed by the test after the time limit
  int exit_code = -1;   ///< -1: ended by `signal`
  int signal = 0;
  std::string out;
  std::string err;
  Seconds took{0};  ///< from the start
};

/// A running program. The kernel kills it when the test's process dies. Destroying it kills and
/// reaps.
class Process {
 public:
  explicit Process(const ProgramCall& call);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// What was written so far.
  std::string out() const;
  std::string err() const;
  /// Waits for the end, at most `limit`; kills it then.
  Ended wait(Seconds limit = stretched(20));

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
  UniqueFd err_;
  std::chrono::steady_clock::time_point begin_;
};

Ended run(const ProgramCall& call, Seconds limit = stretched(20));

/// Whether `pid` exists and is no zombie.
bool alive(pid_t pid);
/// Living children of `pid`, in no order.
std::vector<pid_t> children_of(pid_t pid);
/// Living children of `pid`, their children and so on.
std::vector<pid_t> descendants_of(pid_t pid);

/// Calls `condition` every few milliseconds until it is true; false after `limit`.
bool eventually(const std::function<bool()>& condition, Seconds limit = stretched(10));
/// Whether all of `pids` end within `limit`.
bool gone_within(const std::vector<pid_t>& pids, Seconds limit);

/// From now on orphans of this process's children become its own children, so that none escapes
/// descendants_of().
void adopt_orphans();
/// Kills and reaps every descendant of this process.
void kill_descendants();

/// Sends a signal to one process. Fails the test for a pid that is none: kill() takes 0 and -1 for
/// whole groups of processes.
void send_signal(pid_t pid, int number);

}  // namespace convoy::testing
