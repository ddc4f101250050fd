// The coordinator's conversation with one stage worker, and what it knows of it.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/exit_code.h"
#include "base/ids.h"
#include "control.pb.h"
#include "coordinator/workers/child_process.h"
#include "shared/control/frame_channel.h"

namespace convoy {

/// Where a worker is in its life, as far as its messages say.
enum class WorkerPhase { connecting, greeted, loading, loaded, links_open, released, ended };

/// Why a worker is no use any more.
struct WorkerFailure {
  ExitCode code = ExitCode::engine_died;
  std::string message;  ///< names rank, pid and device
};

/// What a worker has said so far. Copied out under the pool's lock.
struct WorkerStatus {
  WorkerPhase phase = WorkerPhase::connecting;
  int pid = 0;
  uint64_t loaded_bytes = 0;
  uint64_t total_bytes = 0;
  std::optional<proto::Loaded> loaded;
  std::optional<proto::LinksOpened> links;
  std::optional<proto::StageHealth> health;  ///< the last answer to GetHealth
  uint64_t health_answers = 0;
  uint64_t incarnation = 0;
  std::optional<proto::AdmissionAnswer> admission;  ///< the last one
  std::optional<proto::StateMoved> state_moved;     ///< the answer to the last MoveState
};

/// Lives on the pool's io_context thread. Every change goes through `update`, which the pool runs
/// under its lock.
class WorkerConnection : public std::enable_shared_from_this<WorkerConnection> {
 public:
  struct Callbacks {
    std::function<void(Rank, const std::function<void(WorkerStatus&)>&)> update;
    std::function<void(Rank, WorkerFailure)> failed;
  };

  struct Worker {
    Rank rank;
    std::string device;
    int pid = 0;                        ///< 0: not known before its Hello
    std::optional<ChildProcess> child;  ///< if it was spawned; attached workers have none
    std::filesystem::path log_path;
  };
  WorkerConnection(boost::asio::io_context& context, Worker worker, UniqueFd socket,
                   Callbacks callbacks);
  /// Sends Hello and listens. On the io_context's thread.
  void start();
  /// Any thread.
  void send(const proto::ToWorker& message, const std::vector<int>& descriptors = {});
  /// From now on an end of the conversation is no failure. On the io_context's thread.
  void expect_end() { ending_ = true; }
  /// Closes the socket and stops watching. On the io_context's thread.
  void close();

  Rank rank() const { return rank_; }
  /// "stage 2 (pid 123, device cpu)"; a pid that is not known is left out. Any thread.
  std::string who() const;
  /// Null for attached workers.
  ChildProcess* child() { return child_ ? &*child_ : nullptr; }
  /// "; its last log line: …", or "" without one since the conversation began. Any thread.
  std::string last_words() const;

 private:
  void on_frame(const std::string& payload, const std::vector<UniqueFd>& descriptors);
  void on_message(const proto::FromWorker& message);
  void on_hello(const proto::Hello& hello);
  void on_closed(const std::string& reason);
  void watch_child();
  void on_child_ended();
  /// The socket's end and the child's end come in any order; waits for the other one, so that what
  /// a dying worker said last is read and how it ended is known, but not for ever.
  void await_other_end();
  void fail_ended();
  /// For a worker that breaks the rules: start-up failed before its Hello, later the engine died.
  ExitCode broken_rule_code() const {
    return greeted_ ? ExitCode::engine_died : ExitCode::start_failed;
  }
  void fail(ExitCode code, const std::string& what);

  boost::asio::io_context& context_;
  Rank rank_;
  std::string device_;
  std::optional<ChildProcess> child_;
  std::filesystem::path log_path_;
  Callbacks callbacks_;
  std::shared_ptr<FrameChannel> channel_;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer grace_;  // between the end of the socket and the end of the child
  std::optional<std::string> closed_reason_;
  std::optional<ChildExit> child_exit_;
  std::atomic<int> pid_;
  /// What the log held when the conversation began, which is about earlier ones; -1: it has not.
  std::atomic<int64_t> old_log_bytes_;
  bool greeted_ = false;
  bool ending_ = false;
  bool failed_ = false;
  bool stopped_ = false;  // close() was called: the child belongs to the main thread
};

}  // namespace convoy
