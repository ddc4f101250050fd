#include "coordinator/workers/worker_connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "coordinator/version.h"

namespace convoy {
namespace {

// Between the end of a dying worker's socket and its own end, whichever comes first.
constexpr auto kExitGrace = std::chrono::milliseconds(500);

}  // namespace

WorkerConnection::WorkerConnection(boost::asio::io_context& context, Worker worker, UniqueFd socket,
                                   Callbacks callbacks)
    : context_(context),
      rank_(worker.rank),
      device_(std::move(worker.device)),
      child_(std::move(worker.child)),
      log_path_(std::move(worker.log_path)),
      callbacks_(std::move(callbacks)),
      channel_(std::make_shared<FrameChannel>(context, std::move(socket))),
      pidfd_(context),
      grace_(context),
      pid_(worker.pid),
      old_log_bytes_(child_ ? 0 : -1) {
  if (child_) pidfd_.assign(::fcntl(child_->pidfd(), F_DUPFD_CLOEXEC, 0));
}

void WorkerConnection::start() {
  // Weak, since this object owns the channel.
  channel_->start(
      [weak = weak_from_this()](const std::string& payload,
                                const std::vector<UniqueFd>& descriptors) {
        if (const auto self = weak.lock()) self->on_frame(payload, descriptors);
      },
      [weak = weak_from_this()](const std::string& reason) {
        if (const auto self = weak.lock()) self->on_closed(reason);
      });
  if (child_) watch_child();
  proto::ToWorker message;
  proto::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_role("coordinator");
  hello.set_build_version(kVersion);
  hello.set_pid(::getpid());
  send(message);
}

void WorkerConnection::send(const proto::ToWorker& message, const std::vector<int>& descriptors) {
  channel_->send(message, descriptors);
}

void WorkerConnection::close() {
  ending_ = true;
  stopped_ = true;
  channel_->close();
  grace_.cancel();
  boost::system::error_code ignored;
  pidfd_.close(ignored);
}

void WorkerConnection::on_frame(const std::string& payload,
                                const std::vector<UniqueFd>& descriptors) {
  proto::FromWorker message;
  if (!message.ParseFromString(payload) || message.body_case() == proto::FromWorker::BODY_NOT_SET) {
    return fail(broken_rule_code(),
                fmt::format("sent a malformed message of {} bytes", payload.size()));
  }
  if (!descriptors.empty())
    return fail(broken_rule_code(), "sent descriptors that nobody asked for");
  on_message(message);
}

void WorkerConnection::on_message(const proto::FromWorker& message) {
  using proto::FromWorker;
  if (!greeted_ && message.body_case() != FromWorker::kHello) {
    return fail(ExitCode::start_failed, "did not begin with a Hello");
  }
  const auto phase = [this](WorkerPhase to) {
    callbacks_.update(rank_, [to](WorkerStatus& status) { status.phase = to; });
  };
  switch (message.body_case()) {
    case FromWorker::kHello:
      return on_hello(message.hello());
    case FromWorker::kLoadProgress:
      return callbacks_.update(rank_, [&](WorkerStatus& status) {
        status.loaded_bytes = message.load_progress().loaded_bytes();
        status.total_bytes = message.load_progress().total_bytes();
      });
    case FromWorker::kLoaded:
      callbacks_.update(rank_, [&](WorkerStatus& status) { status.loaded = message.loaded(); });
      return phase(WorkerPhase::loaded);
    case FromWorker::kLinksOpened:
      callbacks_.update(rank_,
                        [&](WorkerStatus& status) { status.links = message.links_opened(); });
      return phase(WorkerPhase::links_open);
    case FromWorker::kHealth:
      return callbacks_.update(rank_, [&](WorkerStatus& status) {
        status.health = message.health();
        ++status.health_answers;
      });
    case FromWorker::kStateMoved:
      return callbacks_.update(
          rank_, [&](WorkerStatus& status) { status.state_moved = message.state_moved(); });
    case FromWorker::kAdmission:
      return callbacks_.update(
          rank_, [&](WorkerStatus& status) { status.admission = message.admission(); });
    case FromWorker::kReleased:
      return phase(WorkerPhase::released);
    case FromWorker::kError: {
      const proto::StageError& error = message.error();
      const bool serving =
          error.code() == proto::StageError::LINK || error.code() == proto::StageError::RING;
      return fail(serving ? ExitCode::engine_died : ExitCode::start_failed, error.message());
    }
    case FromWorker::BODY_NOT_SET:
      break;
  }
}

void WorkerConnection::on_hello(const proto::Hello& hello) {
  if (greeted_) return fail(broken_rule_code(), "said Hello twice");
  if (!child_) {
    pid_ = hello.pid();
    std::error_code none;  // then the size is -1, too
    if (!hello.busy())
      old_log_bytes_ = static_cast<int64_t>(std::filesystem::file_size(log_path_, none));
  }
  if (hello.protocol_version() != kProtocolVersion) {
    return fail(
        ExitCode::start_failed,
        fmt::format("speaks protocol version {} (build {}), this coordinator version {} (build {})",
                    hello.protocol_version(), hello.build_version(), kProtocolVersion, kVersion));
  }
  if (hello.role() != "stage_worker")
    return fail(ExitCode::start_failed, fmt::format("says it is a '{}'", hello.role()));
  if (hello.busy()) return fail(ExitCode::start_failed, "serves another coordinator");
  greeted_ = true;
  callbacks_.update(rank_, [&](WorkerStatus& status) {
    status.phase = WorkerPhase::greeted;
    status.pid = hello.pid();
    status.incarnation = hello.incarnation();
  });
}

void WorkerConnection::on_closed(const std::string& reason) {
  if (ending_ || failed_) {
    callbacks_.update(rank_, [](WorkerStatus& status) { status.phase = WorkerPhase::ended; });
    return;
  }
  closed_reason_ = reason;
  const bool peer_closed = reason.empty() || reason == kPeerClosedMidFrame;
  if (!child_ || !peer_closed || child_exit_) return fail_ended();
  await_other_end();
}

void WorkerConnection::watch_child() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (!error && !self->stopped_) self->on_child_ended();
                    });
}

void WorkerConnection::on_child_ended() {
  child_exit_ = child_->try_reap();
  if (ending_) {
    grace_.cancel();
    callbacks_.update(rank_, [](WorkerStatus& status) { status.phase = WorkerPhase::ended; });
    return;
  }
  if (closed_reason_) return fail_ended();
  await_other_end();
}

void WorkerConnection::await_other_end() {
  grace_.expires_after(kExitGrace);
  grace_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->fail_ended();
  });
}

void WorkerConnection::fail_ended() {
  grace_.cancel();
  if (child_exit_)
    return fail(ExitCode::engine_died, fmt::format("died: {}", describe(*child_exit_)));
  const std::string reason = closed_reason_.value_or("");
  if (!reason.empty())
    return fail(broken_rule_code(), fmt::format("broke its control connection: {}", reason));
  fail(ExitCode::engine_died, child_ ? "closed its control connection but is still alive"
                                     : "closed its control connection");
}

void WorkerConnection::fail(ExitCode code, const std::string& what) {
  if (failed_ || ending_) return;
  failed_ = true;
  callbacks_.failed(rank_, {code, fmt::format("{} {}{}", who(), what, last_words())});
}

std::string WorkerConnection::who() const {
  const int pid = pid_;
  return fmt::format("stage {} ({}device {})", rank_.value,
                     pid == 0 ? "" : fmt::format("pid {}, ", pid), device_);
}

std::string WorkerConnection::last_words() const {
  const int64_t old_bytes = old_log_bytes_;
  return old_bytes < 0 ? "" : convoy::last_words(log_path_, old_bytes);
}

}  // namespace convoy
