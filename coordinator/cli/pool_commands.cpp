// `convoy up` and `convoy down`: stage workers that wait to be attached.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/exit_code.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/end_by_signal.h"
#include "coordinator/console/output.h"
#include "coordinator/workers/child_process.h"
#include "shared/control/health_client.h"
#include "shared/control/unix_socket.h"
#include "shared/plan/visible_devices.h"
#include "shared/stage/list_devices.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
constexpr const char* kDefaultDevices = "cpu";
constexpr auto kStartTimeout = std::chrono::seconds(10);
constexpr auto kTermTimeout = std::chrono::seconds(3);
constexpr auto kPoll = std::chrono::milliseconds(20);

class UpCommand : public Command {
 public:
  explicit UpCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "up",
        "Start one stage worker per device that waits to be attached (generate --attach NAME)");
    app->add_option("name", name_, "Name of the pool")
        ->check(instance_name_check())
        ->capture_default_str();
    twins.add(app->add_option("--devices", devices_,
                              "One worker per entry, as for generate; auto: the default")
                  ->capture_default_str(),
              "DEVICES");
    add_runtime_dir_option(*app, twins, runtime_dir_);
  }

  int run() override {
    if (start() == WriteResult::closed) end_by_signal(SIGPIPE);
    return static_cast<int>(ExitCode::done);
  }

 private:
  // Closed: nobody reads that the pool is up, and it is gone again.
  WriteResult start() const {
    const auto devices = identify_devices(parse_devices(
        devices_ == "auto" ? kDefaultDevices : devices_, twins.source_of("--devices")));
    require_listed(devices);
    check_socket_paths(devices.size());
    // Rank 0's card will be known when a run attaches.
    std::vector<DeviceSpec> cards;
    if (devices.front().kind == DeviceKind::cuda) cards = all_gpus();
    InstanceDirectory instance = InstanceDirectory::create(runtime_root(runtime_dir_), name_);
    InstanceInfo info{.name = name_, .kind = "pool", .members = {}};
    // Whatever ends this process before the pool is up ends the workers, too: the pipe closes.
    Pipe starter = make_pipe();
    std::vector<ChildProcess> workers;
    try {
      for (size_t i = 0; i < devices.size(); ++i) {
        const int rank = static_cast<int>(i) + 1;
        // The worker inherits the instance's lock: the pool lives as long as any of its workers.
        workers.push_back(ChildProcess::spawn(
            {.program = program_directory() / "convoy-stage-worker",
             .arguments = {"--rank", std::to_string(rank), "--listen",
                           control_socket_path(instance.path(), rank).native(), "--health",
                           health_socket_path(instance.path(), rank).native(), "--starter-fd", "4"},
             .descriptors = {instance.lock_fd(), starter.read.get()},
             .environment = visible_devices(devices[i], cards),
             .stderr_log = worker_log_path(instance.path(), rank)}));
        info.members.push_back({.rank = rank,
                                .pid = workers.back().pid(),
                                .role = "stage_worker",
                                .device = devices[i].id,
                                .uuid = devices[i].uuid});
      }
      instance.publish(info);
      for (size_t i = 0; i < workers.size(); ++i)
        wait_ready(workers[i], instance.path(), static_cast<int>(i) + 1);
      // A pool that nobody could be told of is taken down.
      if (write_stdout(fmt::format("pool '{}' is up: {} workers; use it with convoy generate "
                                   "--attach {}, end it with convoy down {}\n",
                                   name_, workers.size(), name_, name_)) == WriteResult::closed) {
        kill_all(workers);
        return WriteResult::closed;
      }
      release(starter.write.get(), workers.size());
    } catch (...) {
      kill_all(workers);
      throw;
    }
    instance.disown();
    return WriteResult::written;
  }

  // Before anything starts: of the longest one.
  void check_socket_paths(size_t workers) const {
    const Status status = check_socket_path(
        health_socket_path(runtime_root(runtime_dir_) / name_, static_cast<int>(workers)));
    if (!status) throw StartError(status.error());
  }

  static void kill_all(std::vector<ChildProcess>& workers) {
    for (ChildProcess& worker : workers) {
      worker.signal(SIGKILL);
      worker.reap_for(1000);
    }
  }

  // A byte for each worker, all in one write: either all of them are released or none.
  static void release(int fd, size_t workers) {
    const std::string bytes(workers, '\0');
    if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw StartError(fmt::format("cannot release the workers: {}", std::strerror(errno)));
  }

  static void wait_ready(ChildProcess& worker, const fs::path& instance, int rank) {
    const fs::path log = worker_log_path(instance, rank);
    const auto deadline = Clock::now() + kStartTimeout;
    while (!fs::exists(control_socket_path(instance, rank)) ||
           !ask_health(health_socket_path(instance, rank))) {
      if (const auto exit = worker.try_reap()) {
        throw StartError(fmt::format("stage {} (pid {}) {}{}", rank, worker.pid(), describe(*exit),
                                     last_words(log)));
      }
      if (Clock::now() >= deadline)
        throw StartError(fmt::format("stage {} (pid {}) did not start within {} s{}", rank,
                                     worker.pid(), kStartTimeout.count(), last_words(log)));
      std::this_thread::sleep_for(kPoll);
    }
  }

  std::string name_ = "pool";
  std::string devices_ = kDefaultDevices;
  std::string runtime_dir_;
};

class DownCommand : public Command {
 public:
  explicit DownCommand(CLI::App& parent) {
    app = parent.add_subcommand("down", "End the workers of a pool");
    app->add_option("name", name_, "Name of the pool")
        ->check(instance_name_check())
        ->capture_default_str();
    add_runtime_dir_option(*app, twins, runtime_dir_);
  }

  int run() override {
    const auto root = runtime_root(runtime_dir_);
    const fs::path path = root / name_;
    const auto alive = sweep_and_list_instances(root);
    const bool known = std::find(alive.begin(), alive.end(), path) != alive.end();
    if (!known || !await_members(path))
      throw StartError(fmt::format("no pool '{}' is running in {}", name_, root.native()));
    const auto info = read_instance_info(path);
    if (!info) throw StartError(info.error());
    if (info.value().kind != "pool")
      throw StartError(
          fmt::format("instance '{}' is a run, not a pool; end it with Ctrl-C", name_));
    for (const int number : {SIGTERM, SIGKILL}) {
      for (const InstanceMember& member : info.value().members) end_member(member, number);
      const auto deadline = Clock::now() + kTermTimeout;
      while (instance_alive(path) && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
      if (!instance_alive(path)) break;
    }
    if (instance_alive(path))
      throw StartError(fmt::format("the workers of pool '{}' do not end", name_));
    sweep_and_list_instances(root);
    write_result(fmt::format("pool '{}' is down\n", name_));
    return static_cast<int>(ExitCode::done);
  }

 private:
  // An instance that has not said yet who belongs to it is starting, or its starter was killed and
  // it is about to end. False: it has ended.
  static bool await_members(const fs::path& path) {
    const auto deadline = Clock::now() + kTermTimeout;
    while (instance_alive(path)) {
      if (read_instance_info(path) || Clock::now() >= deadline) return true;
      std::this_thread::sleep_for(kPoll);
    }
    return false;
  }

  // The pool's lock is held, so a worker of it lives; a pid that is no stage worker any more was
  // reused by somebody else.
  static void end_member(const InstanceMember& member, int number) {
    std::error_code error;
    const fs::path program = fs::read_symlink(fmt::format("/proc/{}/exe", member.pid), error);
    if (!error && program.filename().native().starts_with("convoy-stage-worker"))
      ::kill(member.pid, number);
  }

  std::string name_ = "pool";
  std::string runtime_dir_;
};

}  // namespace

std::unique_ptr<Command> add_up_command(CLI::App& app) {
  return std::make_unique<UpCommand>(app);
}
std::unique_ptr<Command> add_down_command(CLI::App& app) {
  return std::make_unique<DownCommand>(app);
}

}  // namespace convoy
