// The command line of a stage worker. People rarely type it: the coordinator and `convoy up` do.
#pragma once

#include <filesystem>
#include <optional>

namespace convoy {

struct WorkerOptions {
  int rank = 1;
  int control_fd = -1;           ///< spawned: the socket to the coordinator
  int parent_pid = 0;            ///< spawned: who must be the parent
  std::filesystem::path listen;  ///< attached: where coordinators connect
  /// attached: a pipe from who started this worker. Its end ends the worker, unless a byte came
  /// before it: then the pool is up. -1: none.
  int starter_fd = -1;
  std::filesystem::path health;  ///< where health questions are answered
};

/// Fills `options`; an exit code when the program is done already (--help, --version, bad usage).
std::optional<int> parse_worker_options(int argc, char** argv, WorkerOptions& options);

}  // namespace convoy
