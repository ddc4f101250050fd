// All stage workers of one run: start or attach, load, connect, watch, end.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "coordinator/workers/load_stage.h"
#include "coordinator/workers/worker_connection.h"
#include "shared/plan/stage_plan.h"

namespace convoy {

/// A signal asked to stop before there was anything to hand back: the program cleans up and ends by
/// that signal.
class Cancelled : public FatalError {
 public:
  explicit Cancelled(int signal)
      : FatalError(ExitCode::start_failed, "cancelled"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

/// How long a worker may take for what should be quick.
struct WorkerTimeouts {
  int hello_ms = 10'000;
  int links_ms = 30'000;
  int admission_ms = 30'000;
};

/// One control thread runs every conversation and the signals; all members are called on the main
/// thread unless they say otherwise. Ends with no process of ours alive, whatever happens.
class WorkerPool {
 public:
  /// Starts the control thread. SIGINT and SIGTERM from now on set cancelled(); a second one kills
  /// every worker at once and ends this process by that signal.
  explicit WorkerPool(WorkerTimeouts timeouts = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Spawns one worker per stage after the first. Throws StartError.
  void spawn(const std::filesystem::path& program, const std::filesystem::path& instance,
             const StagePlan& plan);
  /// Connects to the waiting workers of a pool: the plan's rank r to the pool's worker r. Throws
  /// StartError.
  void attach(const std::filesystem::path& instance, const StagePlan& plan);

  /// Waits until all have greeted, then asks all to load. Throws FatalError.
  void begin_load(const StagePlan& plan, const WorkerSettings& settings);
  /// Waits until all are loaded, calling `tick` about every 100 ms. Throws FatalError.
  void wait_loaded(const std::function<void()>& tick);
  /// Gives each worker its ring and its two links, calls `connect_own`, in which rank 0 connects
  /// its own ends, and waits for the workers. Throws FatalError.
  struct WorkerLinks {
    int ring_fd, incoming_fd, outgoing_fd;
    uint64_t ring_bytes, incoming_bytes, outgoing_bytes;
  };
  struct LinkSettings {
    int spin_iterations = 0;
    proto::LinkWish wish = proto::PINNED;
    proto::LinkDoorbell doorbell = proto::WORDS;
  };
  void open_links(const std::vector<WorkerLinks>& links, const LinkSettings& settings,
                  const std::function<void()>& connect_own);
  /// Asks every worker how it is; who does not answer within `timeout_ms` is left out.
  std::vector<std::optional<proto::StageHealth>> ask_health(int timeout_ms);
  /// Asks each worker to move its part of a sequence's state, at the next `save` entry of its ring.
  /// `requests` by rank - 1.
  void request_state(const std::vector<proto::MoveState>& requests, int fd);
  /// Waits for the answers to that, by rank - 1. Throws FatalError when a stage is lost.
  std::vector<proto::StateMoved> wait_state_moved();
  /// Sends each worker its command (by rank - 1, null: none) and waits for its answer. Error: a
  /// worker was lost, the run was cancelled, or one did not answer within its time.
  Result<std::vector<proto::AdmissionAnswer>> exchange(
      const std::vector<const proto::AdmissionCommand*>& commands);
  /// Ends every worker in order: attached ones are released; spawned ones get Shutdown (2 s),
  /// SIGTERM (1 s), SIGKILL.
  void end();

  /// By rank - 1. Any thread.
  std::vector<WorkerStatus> status() const;
  /// The first failure, if any. Any thread.
  std::optional<WorkerFailure> failure() const;
  /// The signal that asked to stop, or 0. Any thread.
  int cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  /// Readable from the first failure or the first signal that asks to stop on, for poll(). Any
  /// thread.
  int stop_fd() const { return stop_event_.get(); }
  /// Throws what failure() says, if it says something.
  void throw_failure() const;
  /// The same, or Cancelled.
  void check() const;

  /// Called on the control thread at the first failure and at the first signal, after failure() or
  /// cancelled() say it: releases whoever waits for a peer. An empty hook removes it; it does not
  /// run any more once this returns.
  void set_release_hook(std::function<void()> hook);
  /// While set, SIGINT calls this on the control thread and nothing else happens. An empty handler:
  /// as before; the old one does not run any more once this returns.
  void set_interrupt_handler(std::function<void()> handler);

 private:
  void add(WorkerConnection::Worker worker, UniqueFd socket);
  void wait_for_signals();
  void on_failure(WorkerFailure failure);
  void announce_stop();
  bool handle_interrupt();
  /// Waits until every worker's status satisfies `reached`; throws on failure, cancellation or
  /// after `timeout_ms` (-1: none).
  void wait_all(const std::function<bool(const WorkerStatus&)>& reached, int timeout_ms,
                const char* what, const std::function<void()>& tick = {});
  bool wait_ended(int timeout_ms);
  void kill_all();

  WorkerTimeouts timeouts_;
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::signal_set signals_;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<WorkerConnection>>
      workers_;  // changed under mutex_, by the main thread only
  std::condition_variable changed_;
  std::vector<WorkerStatus> status_;
  std::optional<WorkerFailure> failure_;
  std::mutex hook_mutex_;  // held while the hook runs
  std::function<void()> release_hook_;
  std::function<void()> interrupt_handler_;  // under hook_mutex_
  std::atomic<int> cancelled_{0};
  UniqueFd stop_event_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace convoy
