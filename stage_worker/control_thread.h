// The worker's conversation with its coordinator, on a thread of its own.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "control.pb.h"
#include "shared/control/frame_channel.h"
#include "shared/control/health_state.h"
#include "stage_worker/kv_ledger.h"
#include "stage_worker/options.h"

namespace convoy {

/// What the main thread is told to do. A message with its descriptors, or the end of the
/// conversation.
struct WorkerCommand {
  enum class Kind { message, conversation_ended, shutdown };
  Kind kind = Kind::message;
  proto::ToWorker message;
  std::vector<UniqueFd> descriptors;
};

/// Hello, GetHealth, admission and refusals are answered here; everything else is queued for the
/// main thread.
class ControlThread {
 public:
  /// Throws StartError when the socket to listen on cannot be made.
  ControlThread(const WorkerOptions& options, const HealthState& health);
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  /// Waits for the next command. Main thread.
  WorkerCommand next();
  /// Waits for the request that belongs to a `save` entry of the ring; nullopt: stopping(). Main
  /// thread.
  std::optional<WorkerCommand> next_state_request();
  /// Sends to the current coordinator; without one it is dropped. Any thread.
  void send(const proto::FromWorker& message);
  /// Whether the main thread should leave what it is doing: the conversation ended, or a release or
  /// shutdown is queued.
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  /// Called on the control thread whenever stopping() turns true; empty: nobody waits, and the old
  /// one does not run any more once this returns. Main thread.
  void set_stop_hook(std::function<void()> hook);
  /// Answers admission commands from now on; null: they are refused, and the old ledger is not used
  /// any more once this returns. Main thread.
  void set_ledger(KvLedger* ledger);
  /// The life that this conversation's ledger belongs to; differs between conversations.
  uint64_t incarnation() const { return incarnation_.load(std::memory_order_acquire); }
  /// Attached workers: everything of the last conversation is freed, the next coordinator may come.
  /// Main thread.
  void ready_for_next();

 private:
  void watch_starter();
  void accept();
  void begin_conversation(UniqueFd socket);
  void refuse(UniqueFd socket);
  void on_frame(const std::string& payload, std::vector<UniqueFd> descriptors);
  void on_closed(const std::string& reason);
  void fail(const std::string& what);
  void answer_admission(const proto::AdmissionCommand& command);
  void push(WorkerCommand command);
  void shut_down();
  void stop();
  proto::FromWorker hello(bool busy) const;

  WorkerOptions options_;
  const HealthState& health_;
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::signal_set signals_;
  boost::asio::posix::stream_descriptor starter_;
  char starter_byte_ = 0;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::shared_ptr<FrameChannel> channel_;  // control thread only, but for send() under mutex_
  boost::asio::steady_timer
      hello_timer_;  // attached workers: a visitor that says nothing does not keep others out
  bool greeted_ = false;
  bool failed_ = false;     // the conversation is over, its end is on the way
  bool accepting_ = false;  // a wait on acceptor_ is pending
  std::atomic<uint64_t> incarnation_{0};

  std::mutex mutex_;
  std::condition_variable queued_;
  std::deque<WorkerCommand> commands_;
  std::deque<WorkerCommand> state_requests_;
  std::mutex ledger_mutex_;  // held while the ledger answers
  KvLedger* ledger_ = nullptr;
  std::mutex hook_mutex_;  // held while the hook runs
  std::function<void()> stop_hook_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace convoy
