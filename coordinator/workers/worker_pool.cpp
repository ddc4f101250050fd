#include "coordinator/workers/worker_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>

#include "base/check.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "shared/control/instance_directory.h"
#include "shared/control/unix_socket.h"
#include "shared/plan/visible_devices.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kConnectTimeoutMs = 1'000;
constexpr int kShutdownMs = 2'000;
constexpr int kTermMs = 1'000;
constexpr auto kTick = std::chrono::milliseconds(100);

std::vector<std::string> environment_of_stage(const StagePlan& plan, size_t rank) {
  std::vector<DeviceSpec> devices;
  for (const StageAssignment& stage : plan.stages) devices.push_back(stage.device);
  return visible_devices_of_stage(devices, rank);
}

}  // namespace

WorkerPool::WorkerPool(WorkerTimeouts timeouts)
    : timeouts_(timeouts),
      work_(context_.get_executor()),
      signals_(context_, SIGINT, SIGTERM),
      stop_event_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_event_) throw StartError(fmt::format("eventfd: {}", std::strerror(errno)));
  wait_for_signals();
  thread_ = start_thread("control", [this] { context_.run(); }, {SIGINT, SIGTERM});
}

WorkerPool::~WorkerPool() {
  end();
  work_.reset();
  context_.stop();
  thread_.join();
}

void WorkerPool::wait_for_signals() {
  signals_.async_wait([this](const boost::system::error_code& error, int number) {
    if (error) return;
    if (number == SIGINT && handle_interrupt()) return wait_for_signals();
    if (cancelled_.exchange(number) != 0) {
      kill_all();
      ::signal(number, SIG_DFL);
      ::raise(number);
    }
    announce_stop();
    wait_for_signals();
  });
}

void WorkerPool::add(WorkerConnection::Worker worker, UniqueFd socket) {
  WorkerConnection::Callbacks callbacks;
  callbacks.update = [this](Rank r, const std::function<void(WorkerStatus&)>& change) {
    {
      const std::lock_guard lock(mutex_);
      change(status_[static_cast<size_t>(r.value - 1)]);
    }
    changed_.notify_all();
  };
  callbacks.failed = [this](Rank, WorkerFailure failure) { on_failure(std::move(failure)); };
  {
    const std::lock_guard lock(mutex_);
    status_.emplace_back();
    status_.back().pid = worker.pid;
  }
  auto connection =
      std::make_shared<WorkerConnection>(context_, std::move(worker), std::move(socket), callbacks);
  {
    const std::lock_guard lock(mutex_);
    workers_.push_back(connection);
  }
  boost::asio::post(context_, [connection] { connection->start(); });
}

void WorkerPool::spawn(const std::filesystem::path& program, const std::filesystem::path& instance,
                       const StagePlan& plan) {
  for (size_t r = 1; r < plan.stages.size(); ++r) {
    const StageAssignment& stage = plan.stages[r];
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw StartError("socketpair failed");
    UniqueFd ours(ends[0]);
    const UniqueFd theirs(ends[1]);
    const auto log_path = worker_log_path(instance, stage.rank.value);
    ChildProcess child = ChildProcess::spawn(
        {.program = program,
         .arguments = {"--rank", std::to_string(stage.rank.value), "--control-fd", "3", "--parent",
                       std::to_string(::getpid()), "--health",
                       health_socket_path(instance, stage.rank.value).native()},
         .descriptors = {theirs.get()},
         .environment = environment_of_stage(plan, r),
         .stderr_log = log_path});
    const int pid = child.pid();
    add({.rank = stage.rank,
         .device = stage.device.id,
         .pid = pid,
         .child = std::move(child),
         .log_path = log_path},
        std::move(ours));
  }
}

void WorkerPool::attach(const std::filesystem::path& instance, const StagePlan& plan) {
  const auto info = read_instance_info(instance);
  const auto pid_of = [&](Rank rank) {
    if (!info) return 0;
    for (const InstanceMember& member : info.value().members) {
      if (member.rank == rank.value) return member.pid;
    }
    return 0;
  };
  for (size_t r = 1; r < plan.stages.size(); ++r) {
    const Rank rank = plan.stages[r].rank;
    auto socket = connect_unix(control_socket_path(instance, rank.value), kConnectTimeoutMs);
    if (!socket)
      throw StartError(fmt::format("cannot attach stage {}: {}", rank.value, socket.error()));
    add({.rank = rank,
         .device = plan.stages[r].device.id,
         .pid = pid_of(rank),
         .child = std::nullopt,
         .log_path = worker_log_path(instance, rank.value)},
        std::move(socket).value());
  }
}

void WorkerPool::wait_all(const std::function<bool(const WorkerStatus&)>& reached, int timeout_ms,
                          const char* what, const std::function<void()>& tick) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    check();
    if (tick) tick();
    std::unique_lock lock(mutex_);
    if (failure_) continue;
    const auto late = std::find_if_not(status_.begin(), status_.end(), reached);
    if (late == status_.end()) return;
    if (timeout_ms >= 0 && Clock::now() >= deadline) {
      const WorkerConnection& worker = *workers_[static_cast<size_t>(late - status_.begin())];
      throw StartError(fmt::format("{} did not {} within {} s{}", worker.who(), what,
                                   timeout_ms / 1000.0, worker.last_words()));
    }
    changed_.wait_for(lock, kTick);
  }
}

void WorkerPool::begin_load(const StagePlan& plan, const WorkerSettings& settings) {
  wait_all([](const WorkerStatus& s) { return s.phase >= WorkerPhase::greeted; },
           timeouts_.hello_ms, "say Hello");
  for (const auto& worker : workers_) {
    worker->send(load_stage(plan, static_cast<size_t>(worker->rank().value), settings));
  }
}

void WorkerPool::wait_loaded(const std::function<void()>& tick) {
  wait_all([](const WorkerStatus& s) { return s.phase >= WorkerPhase::loaded; }, -1, "load", tick);
}

void WorkerPool::open_links(const std::vector<WorkerLinks>& links, const LinkSettings& settings,
                            const std::function<void()>& connect_own) {
  CONVOY_CHECK_OP(links.size(), ==, workers_.size());
  for (size_t i = 0; i < links.size(); ++i) {
    proto::ToWorker message;
    proto::OpenLinks& open = *message.mutable_open_links();
    open.set_ring_bytes(links[i].ring_bytes);
    open.set_incoming_bytes(links[i].incoming_bytes);
    open.set_outgoing_bytes(links[i].outgoing_bytes);
    open.set_spin_iterations(static_cast<uint32_t>(settings.spin_iterations));
    open.set_wish(settings.wish);
    open.set_doorbell(settings.doorbell);
    workers_[i]->send(message, {links[i].ring_fd, links[i].incoming_fd, links[i].outgoing_fd});
  }
  connect_own();
  wait_all([](const WorkerStatus& s) { return s.phase >= WorkerPhase::links_open; },
           timeouts_.links_ms, "open its links");
}

std::vector<std::optional<proto::StageHealth>> WorkerPool::ask_health(int timeout_ms) {
  std::vector<uint64_t> before;
  for (const WorkerStatus& s : status()) before.push_back(s.health_answers);
  proto::ToWorker message;
  message.mutable_get_health();
  for (const auto& worker : workers_) worker->send(message);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    for (size_t i = 0; i < status_.size(); ++i) {
      if (status_[i].health_answers == before[i]) return failure_.has_value();
    }
    return true;
  });
  std::vector<std::optional<proto::StageHealth>> answers;
  for (size_t i = 0; i < status_.size(); ++i) {
    answers.push_back(status_[i].health_answers > before[i] ? status_[i].health : std::nullopt);
  }
  return answers;
}

void WorkerPool::request_state(const std::vector<proto::MoveState>& requests, int fd) {
  CONVOY_CHECK_OP(requests.size(), ==, workers_.size());
  {
    const std::lock_guard lock(mutex_);
    for (WorkerStatus& s : status_) s.state_moved.reset();
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    proto::ToWorker message;
    *message.mutable_move_state() = requests[i];
    workers_[i]->send(message, {fd});
  }
}

std::vector<proto::StateMoved> WorkerPool::wait_state_moved() {
  wait_all([](const WorkerStatus& s) { return s.state_moved.has_value(); }, -1, "move a state");
  std::vector<proto::StateMoved> answers;
  for (const WorkerStatus& s : status()) answers.push_back(*s.state_moved);
  return answers;
}

Result<std::vector<proto::AdmissionAnswer>> WorkerPool::exchange(
    const std::vector<const proto::AdmissionCommand*>& commands) {
  CONVOY_CHECK_OP(commands.size(), ==, workers_.size());
  {
    const std::lock_guard lock(mutex_);
    for (WorkerStatus& s : status_) s.admission.reset();
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    if (commands[i] == nullptr) continue;
    proto::ToWorker message;
    *message.mutable_admission() = *commands[i];
    workers_[i]->send(message);
  }
  std::unique_lock lock(mutex_);
  const auto late = [&] {
    size_t i = 0;
    while (i < commands.size() && (commands[i] == nullptr || status_[i].admission)) ++i;
    return i;
  };
  const bool told = changed_.wait_for(lock, std::chrono::milliseconds(timeouts_.admission_ms), [&] {
    return failure_ || cancelled() != 0 || late() == commands.size();
  });
  if (failure_) return Error{failure_->message};
  if (cancelled() != 0) return Error{"cancelled"};
  if (!told) {
    return Error{fmt::format("stage {} (pid {}) did not answer an admission command within {} s",
                             workers_[late()]->rank().value, status_[late()].pid,
                             timeouts_.admission_ms / 1000.0)};
  }
  std::vector<proto::AdmissionAnswer> answers;
  for (const WorkerStatus& s : status_)
    answers.push_back(s.admission.value_or(proto::AdmissionAnswer()));
  return answers;
}

bool WorkerPool::wait_ended(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (const auto& worker : workers_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (worker->child() != nullptr &&
        !worker->child()->reap_for(std::max(0, static_cast<int>(left))))
      return false;
  }
  return true;
}

void WorkerPool::end() {
  if (std::exchange(ended_, true)) return;
  // The conversations' thread must be done with the children before this one reaps them.
  std::promise<void> told;
  boost::asio::post(context_, [this, &told] {
    for (const auto& worker : workers_) worker->expect_end();
    told.set_value();
  });
  told.get_future().wait();
  proto::ToWorker shutdown, release;
  shutdown.mutable_shutdown();
  release.mutable_release();
  for (const auto& worker : workers_) worker->send(worker->child() != nullptr ? shutdown : release);

  const auto deadline = Clock::now() + std::chrono::milliseconds(kShutdownMs);
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] {
      return std::all_of(status_.begin(), status_.end(),
                         [](const WorkerStatus& s) { return s.phase >= WorkerPhase::released; }) ||
             failure_;
    });
  }
  std::promise<void> closed;
  boost::asio::post(context_, [this, &closed] {
    for (const auto& worker : workers_) worker->close();
    closed.set_value();
  });
  closed.get_future().wait();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (wait_ended(std::max(0, static_cast<int>(left)))) return;
  for (const auto& worker : workers_) {
    if (worker->child() != nullptr) worker->child()->signal(SIGTERM);
  }
  if (wait_ended(kTermMs)) return;
  log(LogLevel::warning, "stage workers did not end in time and are killed");
  kill_all();
  wait_ended(kTermMs);
}

void WorkerPool::kill_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& worker : workers_) {
    if (worker->child() != nullptr) worker->child()->signal(SIGKILL);
  }
}

std::vector<WorkerStatus> WorkerPool::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::optional<WorkerFailure> WorkerPool::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void WorkerPool::throw_failure() const {
  if (const auto failed = failure()) throw FatalError(failed->code, failed->message);
}

void WorkerPool::check() const {
  throw_failure();
  if (const int signal = cancelled(); signal != 0) throw Cancelled(signal);
}

void WorkerPool::on_failure(WorkerFailure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
  }
  announce_stop();
}

void WorkerPool::announce_stop() {
  changed_.notify_all();
  ::eventfd_write(stop_event_.get(), 1);
  const std::lock_guard lock(hook_mutex_);
  if (release_hook_) release_hook_();
}

bool WorkerPool::handle_interrupt() {
  const std::lock_guard lock(hook_mutex_);
  if (interrupt_handler_) interrupt_handler_();
  return interrupt_handler_ != nullptr;
}

void WorkerPool::set_interrupt_handler(std::function<void()> handler) {
  const std::lock_guard lock(hook_mutex_);
  interrupt_handler_ = std::move(handler);
}

void WorkerPool::set_release_hook(std::function<void()> hook) {
  const std::lock_guard lock(hook_mutex_);
  release_hook_ = std::move(hook);
}

}  // namespace convoy
