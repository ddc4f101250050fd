#include "stage_worker/control_thread.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "base/exit_code.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "shared/control/unix_socket.h"

namespace convoy {
namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(5);

}  // namespace

ControlThread::ControlThread(const WorkerOptions& options, const HealthState& health)
    : options_(options),
      health_(health),
      work_(context_.get_executor()),
      signals_(context_, SIGINT, SIGTERM),
      starter_(context_),
      acceptor_(context_),
      hello_timer_(context_) {
  signals_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    log(LogLevel::info, "asked to end by a signal");
    shut_down();
  });
  if (options_.control_fd >= 0) {
    boost::asio::post(context_, [this] { begin_conversation(UniqueFd(options_.control_fd)); });
  } else {
    auto listener = listen_unix(options_.listen);
    if (!listener) throw StartError(listener.error());
    acceptor_.assign(boost::asio::local::stream_protocol(), std::move(listener).value().release());
    accept();
    watch_starter();
  }
  thread_ = start_thread("control", [this] { context_.run(); }, {SIGINT, SIGTERM});
}

ControlThread::~ControlThread() {
  // What was sent last (Released, StageError) still goes out: stopping is queued behind it.
  boost::asio::post(context_, [this] {
    if (channel_) channel_->close();
    context_.stop();
  });
  thread_.join();
  if (!options_.listen.empty()) ::unlink(options_.listen.c_str());
}

// Until every worker of the pool is ready and listed, nobody but the starter knows of this one.
void ControlThread::watch_starter() {
  if (options_.starter_fd < 0) return;
  starter_.assign(options_.starter_fd);
  starter_.async_read_some(boost::asio::buffer(&starter_byte_, 1),
                           [this](const boost::system::error_code& error, size_t) {
                             if (error == boost::asio::error::operation_aborted) return;
                             boost::system::error_code ignored;
                             starter_.close(ignored);
                             if (!error) return;
                             log(LogLevel::error, "its starter ended before the pool was up");
                             shut_down();
                           });
}

void ControlThread::accept() {
  if (std::exchange(accepting_, true)) return;
  acceptor_.async_wait(
      boost::asio::socket_base::wait_read, [this](const boost::system::error_code& error) {
        accepting_ = false;
        // Between two conversations newcomers wait in the backlog until everything is freed.
        if (error || stopping()) return;
        UniqueFd socket(::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket && channel_) {
          refuse(std::move(socket));
        } else if (socket) {
          begin_conversation(std::move(socket));
        }
        accept();
      });
}

void ControlThread::ready_for_next() {
  boost::asio::post(context_, [this] {
    stopping_.store(false, std::memory_order_release);
    accept();
  });
}

proto::FromWorker ControlThread::hello(bool busy) const {
  proto::FromWorker message;
  proto::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_role("stage_worker");
  hello.set_build_version(CONVOY_VERSION);
  hello.set_pid(::getpid());
  hello.set_incarnation(incarnation());
  hello.set_busy(busy);
  return message;
}

void ControlThread::refuse(UniqueFd socket) {
  const std::string frame = encode_frame(hello(true));
  [[maybe_unused]] const ssize_t sent =
      ::send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlThread::begin_conversation(UniqueFd socket) {
  auto channel = std::make_shared<FrameChannel>(context_, std::move(socket));
  {
    const std::lock_guard lock(mutex_);
    channel_ = channel;
  }
  greeted_ = false;
  failed_ = false;
  incarnation_.store(
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
      std::memory_order_release);
  channel->start(
      [this](const std::string& payload, std::vector<UniqueFd> descriptors) {
        on_frame(payload, std::move(descriptors));
      },
      [this](const std::string& reason) { on_closed(reason); });
  send(hello(false));
  if (options_.control_fd >= 0) return;
  hello_timer_.expires_after(kHelloTimeout);
  hello_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && channel_ && !greeted_) fail("the coordinator said no Hello in time");
  });
}

void ControlThread::on_frame(const std::string& payload, std::vector<UniqueFd> descriptors) {
  if (failed_) return;
  WorkerCommand command;
  command.descriptors = std::move(descriptors);
  if (!command.message.ParseFromString(payload))
    return fail(fmt::format("malformed message of {} bytes", payload.size()));
  using proto::ToWorker;
  const auto kind = command.message.body_case();
  if (kind == ToWorker::kHello) {
    const uint32_t version = command.message.hello().protocol_version();
    if (version != kProtocolVersion) {
      return fail(fmt::format("the coordinator speaks protocol version {}, this worker version {}",
                              version, kProtocolVersion));
    }
    greeted_ = true;
    hello_timer_.cancel();
    return;
  }
  if (!greeted_) return fail("the coordinator did not begin with a Hello");
  switch (kind) {
    case ToWorker::kGetHealth: {
      proto::FromWorker answer;
      *answer.mutable_health() = health_.snapshot();
      return send(answer);
    }
    case ToWorker::kAdmission:
      return answer_admission(command.message.admission());
    case ToWorker::kShutdown:
      command.kind = WorkerCommand::Kind::shutdown;
      push(std::move(command));
      return stop();
    case ToWorker::kRelease:
      push(std::move(command));
      return stop();
    case ToWorker::kLoadStage:
    case ToWorker::kOpenLinks:
      return push(std::move(command));
    case ToWorker::kMoveState: {
      {
        const std::lock_guard lock(mutex_);
        state_requests_.push_back(std::move(command));
      }
      return queued_.notify_all();
    }
    default:
      return fail("empty message");
  }
}

void ControlThread::answer_admission(const proto::AdmissionCommand& command) {
  proto::FromWorker message;
  {
    const std::lock_guard lock(ledger_mutex_);
    if (ledger_ == nullptr) return fail("an admission command before a stage was loaded");
    *message.mutable_admission() = ledger_->handle(command);
  }
  send(message);
}

void ControlThread::set_ledger(KvLedger* ledger) {
  const std::lock_guard lock(ledger_mutex_);
  ledger_ = ledger;
}

void ControlThread::fail(const std::string& what) {
  failed_ = true;
  proto::FromWorker message;
  proto::StageError& error = *message.mutable_error();
  error.set_code(proto::StageError::BAD_MESSAGE);
  error.set_rank(static_cast<uint32_t>(options_.rank));
  error.set_message(what);
  send(message);
  // Behind the error in the queue, so that the coordinator reads it first.
  boost::asio::post(context_, [this, what] {
    if (!channel_) return;  // a second bad frame of a conversation that has ended
    channel_->close();
    on_closed(what);
  });
}

void ControlThread::on_closed(const std::string& reason) {
  if (!channel_) return;  // said already
  log(LogLevel::info, reason.empty() ? "the coordinator is gone" : "conversation ended: " + reason);
  // A spawned worker has nothing to give back: the kernel frees memory and segments.
  if (options_.control_fd >= 0) ::_exit(static_cast<int>(ExitCode::engine_died));
  {
    const std::lock_guard lock(mutex_);
    channel_.reset();
  }
  hello_timer_.cancel();
  push({WorkerCommand::Kind::conversation_ended, {}, {}});
  stop();
}

void ControlThread::push(WorkerCommand command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  queued_.notify_all();
}

void ControlThread::shut_down() {
  push({WorkerCommand::Kind::shutdown, {}, {}});
  stop();
}

void ControlThread::stop() {
  {
    // Under the lock, or a wait for a state request could miss it.
    const std::lock_guard lock(mutex_);
    stopping_.store(true, std::memory_order_release);
    state_requests_.clear();
  }
  queued_.notify_all();
  const std::lock_guard lock(hook_mutex_);
  if (stop_hook_) stop_hook_();
}

WorkerCommand ControlThread::next() {
  std::unique_lock lock(mutex_);
  queued_.wait(lock, [this] { return !commands_.empty(); });
  WorkerCommand command = std::move(commands_.front());
  commands_.pop_front();
  return command;
}

std::optional<WorkerCommand> ControlThread::next_state_request() {
  std::unique_lock lock(mutex_);
  queued_.wait(lock, [this] { return !state_requests_.empty() || stopping(); });
  if (state_requests_.empty()) return std::nullopt;
  WorkerCommand command = std::move(state_requests_.front());
  state_requests_.pop_front();
  return command;
}

void ControlThread::send(const proto::FromWorker& message) {
  const std::lock_guard lock(mutex_);
  if (channel_) channel_->send(message);
}

void ControlThread::set_stop_hook(std::function<void()> hook) {
  const std::lock_guard lock(hook_mutex_);
  stop_hook_ = std::move(hook);
}

}  // namespace convoy
