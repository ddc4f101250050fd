#include "coordinator/probe/probe.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/exit_code.h"
#include "coordinator/workers/child_process.h"
#include "coordinator/workers/worker_pool.h"
#include "shared/control/instance_directory.h"
#include "shared/ipc/shared_region.h"
#include "shared/plan/visible_devices.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr auto kPairTimeout = std::chrono::minutes(5);
constexpr int kEndMs = 10'000;
constexpr int kWaitSpins = 2000;  // as in a run

// Holds Ctrl-C and SIGTERM back, so that the folder goes before the program does. Declared before
// what is to go first; a signal that nobody took ends the program when this ends.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
    fd_.reset(::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) {
      const int error = errno;
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw StartError(fmt::format("signalfd: {}", std::strerror(error)));
    }
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int fd() const { return fd_.get(); }
  // Throws Cancelled where one has come.
  void check() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)))
      throw Cancelled(static_cast<int>(info.ssi_signo));
  }

 private:
  sigset_t before_{};
  UniqueFd fd_;
};

// A child and what it has said so far.
struct End {
  ProbeEndOptions options;
  ChildProcess process;
  UniqueFd output;
  std::string unread = {};
  std::optional<DeviceInfo> device = {};
  std::string transport = {};
  std::string fallback = {};
  std::vector<LinkMeasurement> sizes = {};
  std::string error = {};
  bool ended = false;
};

void take(End& end, const ProbeMessage& message) {
  switch (message.kind) {
    case ProbeMessage::Kind::device:
      end.device = message.device;
      break;
    case ProbeMessage::Kind::connected:
      end.transport = message.transport;
      end.fallback = message.fallback;
      break;
    case ProbeMessage::Kind::measurement:
      end.sizes.push_back(message.measurement);
      break;
    case ProbeMessage::Kind::error:
      end.error = message.error;
      break;
  }
}

void read_output(End& end) {
  std::array<char, 4096> bytes{};
  const ssize_t got = ::read(end.output.get(), bytes.data(), bytes.size());
  if (got <= 0) {
    end.ended = true;
    return;
  }
  end.unread.append(bytes.data(), static_cast<size_t>(got));
  for (size_t at = 0; (at = end.unread.find('\n')) != std::string::npos;) {
    const auto message = parse_probe_line(end.unread.substr(0, at));
    end.unread.erase(0, at + 1);
    if (!message) throw StartError(message.error());
    take(end, message.value());
  }
}

class Pair {
 public:
  // `folder` takes the children's stderr, for what they could not say otherwise.
  Pair(const ProbeOptions& options, const fs::path& folder, const ProbeEndOptions& common,
       const DeviceSpec& first, const DeviceSpec& second)
      : folder_(folder),
        forward_(make_region(common, "forward")),
        backward_(make_region(common, "backward")) {
    start(options, common, first, second, true);
    start(options, common, second, first, false);
  }
  ~Pair() {
    for (End& end : ends_) {
      if (!end.process.reap_for(0)) end.process.signal(SIGKILL);
      end.process.reap_for(kEndMs);
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Until both have ended. Throws Cancelled after a signal.
  void wait(const HeldSignals& signals) {
    const auto deadline = Clock::now() + kPairTimeout;
    while (!ends_[0].ended || !ends_[1].ended) {
      std::array<pollfd, 3> ready{};
      for (size_t i = 0; i < 2; ++i)
        ready[i] = {ends_[i].ended ? -1 : ends_[i].output.get(), POLLIN, 0};
      ready[2] = {signals.fd(), POLLIN, 0};
      if (::poll(ready.data(), ready.size(), 1000) < 0 && errno != EINTR)
        throw StartError(fmt::format("poll: {}", std::strerror(errno)));
      signals.check();
      for (size_t i = 0; i < 2; ++i) {
        if (ready[i].revents != 0) read_output(ends_[i]);
        check(ends_[i]);
      }
      if (Clock::now() > deadline)
        throw StartError("the probe of a pair of devices does not end; its processes were killed");
    }
  }
  const End& first() const { return ends_[0]; }
  const End& second() const { return ends_[1]; }

 private:
  static SharedRegion make_region(const ProbeEndOptions& common, const std::string& label) {
    const StageLinkOptions link = probe_link_options(common);
    SharedRegion region = SharedRegion::create(label, stage_link_region_bytes(link));
    format_stage_link(region, link);
    return region;
  }

  void start(const ProbeOptions& options, ProbeEndOptions end, const DeviceSpec& device,
             const DeviceSpec& other, bool first) {
    end.device = device.id;
    end.uuid = device.uuid;
    end.first = first;
    end.parent_pid = ::getpid();
    Pipe output = make_pipe();
    std::vector<std::string> arguments = to_arguments(end);
    arguments.insert(arguments.begin(), "probe-end");
    ChildProcess process =
        ChildProcess::spawn({.program = options.program,
                             .arguments = arguments,
                             .descriptors = {output.write.get(), forward_.fd(), backward_.fd()},
                             .environment = visible_devices(device, {other}),
                             .stderr_log = log_of(first)});
    ends_.push_back(
        {.options = end, .process = std::move(process), .output = std::move(output.read)});
  }

  // An end that failed is the reason why the other one cannot go on.
  void check(End& end) {
    if (!end.error.empty()) throw StartError(end.error);
    if (!end.ended) return;
    const auto exit = end.process.reap_for(kEndMs);
    if (exit && !exit->signalled && exit->code == 0) return;
    const std::string said = last_line(log_of(end.options.first));
    throw StartError(fmt::format("the probe process on {} {}{}{}", end.options.device,
                                 exit ? describe(*exit) : "does not end", said.empty() ? "" : ": ",
                                 said));
  }

  fs::path log_of(bool first) const { return folder_ / (first ? "first.log" : "second.log"); }

  const fs::path& folder_;
  SharedRegion forward_, backward_;
  std::vector<End> ends_;
};

// Indices into `ends` of every pair that is measured, each once.
std::vector<std::pair<size_t, size_t>> pairs_of(const std::vector<DeviceSpec>& devices,
                                                const std::vector<DeviceSpec>& ends) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto named = std::count_if(devices.begin(), devices.end(),
                                     [&](const DeviceSpec& d) { return d.id == ends[i].id; });
    if (named > 1 || ends.size() == 1) pairs.emplace_back(i, i);
    for (size_t j = i + 1; j < ends.size(); ++j) pairs.emplace_back(i, j);
  }
  return pairs;
}

ProbedLink direction(const End& end, size_t from, size_t to) {
  return {from, to, end.transport, end.fallback, end.sizes};
}

}  // namespace

ProbeResult probe(const ProbeOptions& options,
                  const std::function<void(const std::string&)>& note) {
  std::vector<DeviceSpec> ends;  // each device once
  for (const DeviceSpec& device : options.devices) {
    const bool known = std::any_of(ends.begin(), ends.end(),
                                   [&](const DeviceSpec& d) { return d.id == device.id; });
    if (!known) ends.push_back(device);
  }
  const bool cpu = options.devices.front().kind == DeviceKind::cpu;
  std::vector<LinkWish> wishes{LinkWish::pinned};
  if (!cpu) wishes.push_back(LinkWish::peer);

  const HeldSignals signals;
  const InstanceDirectory folder =
      InstanceDirectory::create(options.runtime_root, fmt::format("probe-{}", ::getpid()));
  folder.publish({.name = folder.name(), .kind = "probe", .members = {}});
  ProbeResult result;
  result.devices.resize(ends.size());
  ProbeEndOptions common;
  common.threads = options.threads;
  common.doorbell = options.doorbell;
  common.rounds = options.rounds;
  // Spinning pays only where both processes have a core.
  common.spin_iterations = cpu && physical_cores() >= 2 ? kWaitSpins : 0;
  for (const auto& [from, to] : pairs_of(options.devices, ends)) {
    for (const LinkWish wish : wishes) {
      common.wish = wish;
      note(fmt::format(
          "{} and {}, {}", ends[from].id, ends[to].id,
          cpu ? "shared memory" : (wish == LinkWish::pinned ? "pinned" : "device memory")));
      Pair pair(options, folder.path(), common, ends[from], ends[to]);
      pair.wait(signals);
      result.devices[from] = pair.first().device.value();
      result.devices[to] = pair.second().device.value();
      result.links.push_back(direction(pair.first(), from, to));
      if (from != to) result.links.push_back(direction(pair.second(), to, from));
    }
  }
  return result;
}

}  // namespace convoy
