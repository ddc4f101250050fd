// A process that this one spawned, and what it may have to say.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace convoy {

struct SpawnRequest {
  std::filesystem::path program;
  std::vector<std::string> arguments;  ///< without the program's name
  /// Descriptors the child gets, as 3, 4, … in this order; it inherits no others.
  std::vector<int> descriptors;
  /// "NAME=value", in place of what this process has of that name.
  std::vector<std::string> environment = {};
  std::filesystem::path stderr_log;  ///< created; stdin and stdout are /dev/null
};

/// How a child ended.
struct ChildExit {
  bool signalled = false;
  int code = 0;  ///< exit code, or the signal's number
};
/// "killed by signal 9 (Killed)" or "exited with code 1".
std::string describe(const ChildExit& exit);

/// Owns the child's pidfd. Destroying it neither kills nor reaps: the owner does, in order.
/// Moved-from: no child.
class ChildProcess {
 public:
  /// Spawns in a session of its own, with default signals and an environment without CONVOY_
  /// variables: a worker reads none. Must be called on the main thread: the kernel ties the child's
  /// parent-death signal to the spawning thread. Throws StartError (program missing or not
  /// executable, log not writable).
  static ChildProcess spawn(const SpawnRequest& request);

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  /// Nothing happens once the child was reaped. Any thread.
  void signal(int number) const;
  /// Reaps the child if it has ended; later calls return the same.
  std::optional<ChildExit> try_reap();
  /// Waits up to `timeout_ms`.
  std::optional<ChildExit> reap_for(int timeout_ms);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ChildExit> exit_;
};

/// A pipe for a child to write to; both ends close on exec. Throws StartError.
struct Pipe {
  UniqueFd read, write;
};
Pipe make_pipe();

/// The last line of a child's log that is not empty, of what comes after its first `skipped_bytes`;
/// "" where there is none.
std::string last_line(const std::filesystem::path& log, int64_t skipped_bytes = 0);
/// The same for the end of a message: "; its last log line: …", or "".
std::string last_words(const std::filesystem::path& log, int64_t skipped_bytes = 0);

}  // namespace convoy
