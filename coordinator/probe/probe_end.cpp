#include "coordinator/probe/probe_end.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
#include "base/futex.h"
#include "base/unique_fd.h"
#include "coordinator/probe/probe_messages.h"
#include "shared/control/parent_process.h"
#include "shared/stage/open_device.h"

namespace convoy {
namespace {

constexpr uint32_t kSlots = 2;   // as residual links have
constexpr size_t kAckBytes = 4;  // what comes back when one direction is measured
constexpr int kAhead = 16;       // round trips that may be enqueued before the stream is waited for
constexpr int kLargeRounds = 40;  // at most, for payloads of a few megabytes and more
constexpr size_t kLargeBytes = size_t{4} << 20;
constexpr size_t kRowBytes = size_t{256} << 20;  // sent in a row for a size's throughput
constexpr size_t kFewestInARow = 8;
constexpr int kCheckedTrips = 3;
constexpr size_t kWordDistance = 64;  // words lie on cache lines of their own
using Clock = std::chrono::steady_clock;

void write_message(const ProbeMessage& message) {
  const std::string line = to_line(message);
  for (size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(kProbeOutputFd, line.data() + done, line.size() - done);
    if (wrote < 0) throw StartError(fmt::format("probe output: {}", std::strerror(errno)));
    done += static_cast<size_t>(wrote);
  }
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto index = static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  return values[index];
}

uint32_t check_word(uint32_t seed, size_t index) {
  return (seed + 1) * 2246822519U + static_cast<uint32_t>(index) * 2654435761U;
}

class ProbeEnd {
 public:
  ProbeEnd(const ProbeEndOptions& options, Device& device, StageLinkSender out,
           StageLinkReceiver in)
      : options_(options),
        device_(device),
        stream_(device.make_stream()),
        out_(std::move(out)),
        in_(std::move(in)),
        payload_(device.allocate(kProbeSizes.back(), "probe payload")),
        host_(device.allocate_host(kProbeSizes.back(), "probe payload")),
        words_(device.allocate_host(2 * kWordDistance * sizeof(uint32_t), "probe words")) {}

  void run() {
    connect();
    check_sizes();
    for (const size_t bytes : kProbeSizes) {
      // The first end measures its direction while the second answers, then the other way round.
      if (!options_.first) answer(bytes);
      measure(bytes);
      if (options_.first) answer(bytes);
    }
  }

 private:
  // Both ends connect the forward link first.
  void connect() {
    Result<LinkConnection> forward = Error{""};
    Result<LinkConnection> backward = Error{""};
    if (options_.first) {
      forward = out_.connect(*stream_);
      if (forward) backward = in_.connect(*stream_);
    } else {
      forward = in_.connect(*stream_);
      if (forward) backward = out_.connect(*stream_);
    }
    if (!forward) throw StartError(forward.error());
    if (!backward) throw StartError(backward.error());
    const LinkConnection& mine = options_.first ? forward.value() : backward.value();
    ProbeMessage message;
    message.kind = ProbeMessage::Kind::connected;
    message.transport =
        device_.kind() == DeviceKind::cpu ? "host" : link_transport_name(mine.transport);
    message.fallback = mine.fallback;
    write_message(message);
  }

  void send(size_t bytes) {
    if (out_.send(*stream_, payload_.data(), bytes, 0, {}) == Transfer::aborted)
      throw StartError("the probe's link was aborted");
  }
  void receive(size_t bytes) {
    out_.acquire_ahead(*stream_);  // as a stage does
    const auto received = in_.receive(*stream_, payload_.data(), bytes, 0);
    if (!received) throw StartError(received.error());
    if (received.value() == Transfer::aborted) throw StartError("the probe's link was aborted");
  }

  // Every size there and back, compared on both sides.
  void check_sizes() {
    for (const size_t bytes : kProbeSizes) {
      for (uint32_t trip = 0; trip < kCheckedTrips; ++trip) {
        if (!options_.first) {
          receive(bytes);
          expect_words(bytes, trip);
          send(bytes);
          continue;
        }
        auto* words = host_.as<uint32_t>();
        for (size_t i = 0; i < bytes / 4; ++i) words[i] = check_word(trip, i);
        stream_->copy(payload_.data(), words, bytes);
        send(bytes);
        stream_->fill_zero(payload_.data(), bytes);
        receive(bytes);
        expect_words(bytes, trip);
      }
    }
    stream_->synchronize();
  }
  void expect_words(size_t bytes, uint32_t trip) {
    stream_->copy(host_.data(), payload_.data(), bytes);
    stream_->synchronize();
    const auto* words = host_.as<uint32_t>();
    for (size_t i = 0; i < bytes / 4; ++i) {
      if (words[i] != check_word(trip, i)) {
        throw StartError(
            fmt::format("{}: word {} of {} bytes arrived wrong", options_.device, i, bytes));
      }
    }
  }

  // What is enqueued in between begins together, so that the time to enqueue it is not measured. A
  // stage's work is enqueued before its residual comes, too. A stream that runs inline has no gate.
  void close_gate() {
    if (enqueues()) stream_->wait_value(gate(), ++gates_);
  }
  void open_gate() { futex_store_and_wake(gate(), gates_); }

  // Whether a stream tells of each transfer that it received without more ado: a mark of its own
  // would lie on the way that is measured.
  bool words_tell() const { return enqueues() && options_.doorbell == LinkDoorbell::words; }

  // Notes when the stream has received. Not with events: on one card their timestamps would make
  // the two processes take turns.
  void mark(std::vector<Clock::time_point>& times) {
    if (words_tell()) return;
    if (enqueues()) {
      stream_->write_value(progress(), ++marks_);
    } else {
      times.push_back(Clock::now());
    }
  }
  // The moments of the last `count` transfers that were received or marks that were made, watched
  // while the stream passes them.
  void watch(std::vector<Clock::time_point>& times, uint32_t count) {
    if (!enqueues()) return;
    const uint32_t last = words_tell() ? in_.next_transfer() : marks_;
    for (uint32_t next = last - count + 1; next != last + 1; ++next) {
      while (!counter_reached(words_tell()
                                  ? in_.drained_word()
                                  : std::atomic_ref(*progress()).load(std::memory_order_acquire),
                              next)) {
      }
      times.push_back(Clock::now());
    }
  }

  // Trips of `bytes` there and an acknowledgement back, which the other end answer_trips(): the
  // microseconds of each.
  std::vector<double> measure_trips(size_t bytes) {
    std::vector<double> trips_us;
    for (int left = trips_of(bytes); left > 0;) {
      const int batch = std::min(kAhead, left);
      std::vector<Clock::time_point> times;
      close_gate();
      if (!enqueues()) times.push_back(Clock::now());
      for (int i = 0; i < batch; ++i) {
        send(bytes);
        receive(kAckBytes);
        mark(times);
      }
      open_gate();
      if (enqueues()) times.push_back(Clock::now());
      watch(times, static_cast<uint32_t>(batch));
      stream_->synchronize();
      for (size_t i = 1; i < times.size(); ++i) {
        trips_us.push_back(
            std::chrono::duration<double, std::micro>(times[i] - times[i - 1]).count());
      }
      left -= batch;
    }
    return trips_us;
  }
  void answer_trips(size_t bytes) {
    for (int i = 0; i < trips_of(bytes); ++i) {
      receive(bytes);
      send(kAckBytes);
      if (i % kAhead == kAhead - 1) stream_->synchronize();
    }
  }

  int trips_of(size_t bytes) const {
    return bytes >= kLargeBytes ? std::min(options_.rounds, kLargeRounds) : options_.rounds;
  }
  int in_a_row(size_t bytes) const {
    return static_cast<int>(std::clamp(kRowBytes / bytes, kFewestInARow,
                                       static_cast<size_t>(std::max(options_.rounds, 8))));
  }

  // From the first of many payloads in a row to the acknowledgement of the last.
  double measure_row(size_t bytes) {
    const auto begin = Clock::now();
    for (int i = 0; i < in_a_row(bytes); ++i) {
      if (i % kAhead == kAhead - 1) stream_->synchronize();
      send(bytes);
    }
    receive(kAckBytes);
    stream_->synchronize();
    const std::chrono::duration<double> took = Clock::now() - begin;
    return static_cast<double>(bytes) * in_a_row(bytes) / took.count() / double{1 << 30};
  }
  void answer_row(size_t bytes) {
    for (int i = 0; i < in_a_row(bytes); ++i) {
      receive(bytes);
      if (i % kAhead == kAhead - 1) stream_->synchronize();
    }
    send(kAckBytes);
    stream_->synchronize();
  }

  void measure(size_t bytes) {
    const double ack_us = percentile(measure_trips(kAckBytes), 0.5) / 2;
    std::vector<double> one_way = measure_trips(bytes);
    // The payload takes no less than the acknowledgement, which is no larger.
    for (double& us : one_way) us = std::max(us - ack_us, us / 2);
    ProbeMessage message;
    message.kind = ProbeMessage::Kind::measurement;
    message.measurement = {bytes, percentile(one_way, 0.5), percentile(one_way, 0.99),
                           measure_row(bytes)};
    write_message(message);
  }
  void answer(size_t bytes) {
    answer_trips(kAckBytes);
    answer_trips(bytes);
    answer_row(bytes);
  }

  bool enqueues() const { return device_.kind() != DeviceKind::cpu; }
  uint32_t* gate() const { return words_.as<uint32_t>(); }
  uint32_t* progress() const { return words_.as<uint32_t>() + kWordDistance; }

  const ProbeEndOptions& options_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  StageLinkSender out_;
  StageLinkReceiver in_;
  Buffer payload_;
  Buffer host_;
  Buffer words_;
  uint32_t gates_ = 0;
  uint32_t marks_ = 0;
};

SharedRegion open_region(int fd, const ProbeEndOptions& options, const char* label) {
  auto region =
      SharedRegion::open(UniqueFd(fd), stage_link_region_bytes(probe_link_options(options)), label);
  if (!region) throw StartError(region.error());
  return std::move(region).value();
}

void measure_all(const ProbeEndOptions& options) {
  const auto device = open_device(options.device, options.threads, options.uuid);
  device->bind_thread();
  device->set_wait_spins(options.spin_iterations);
  ProbeMessage message;
  message.kind = ProbeMessage::Kind::device;
  message.device = device->info();
  write_message(message);
  SharedRegion forward = open_region(kProbeForwardFd, options, "forward");
  SharedRegion backward = open_region(kProbeBackwardFd, options, "backward");
  const StageLinkOptions link = probe_link_options(options);
  auto out = StageLinkSender::open(options.first ? forward : backward, link, device.get());
  if (!out) throw StartError(out.error());
  auto in = StageLinkReceiver::open(options.first ? backward : forward, link, device.get());
  if (!in) throw StartError(in.error());
  ProbeEnd(options, *device, std::move(out).value(), std::move(in).value()).run();
}

}  // namespace

StageLinkOptions probe_link_options(const ProbeEndOptions& options) {
  return {.slots = kSlots,
          .payload_bytes = kProbeSizes.back(),
          .start = {},
          .wish = options.wish,
          .doorbell = options.doorbell};
}

std::vector<std::string> to_arguments(const ProbeEndOptions& options) {
  std::vector<std::string> arguments{
      fmt::format("--first={}", options.first ? 1 : 0),
      fmt::format("--device={}", options.device),
      fmt::format("--threads={}", options.threads),
      fmt::format("--wish={}", static_cast<uint32_t>(options.wish)),
      fmt::format("--doorbell={}", static_cast<uint32_t>(options.doorbell)),
      fmt::format("--rounds={}", options.rounds),
      fmt::format("--spins={}", options.spin_iterations),
      fmt::format("--parent={}", options.parent_pid)};
  if (!options.uuid.empty()) arguments.push_back("--uuid=" + options.uuid);
  return arguments;
}

int run_probe_end(const ProbeEndOptions& options) {
  if (!tie_to_parent(options.parent_pid)) return static_cast<int>(ExitCode::engine_died);
  try {
    measure_all(options);
  } catch (const FatalError& error) {
    ProbeMessage message;
    message.error = error.what();
    write_message(message);
    return static_cast<int>(error.code());
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace convoy
