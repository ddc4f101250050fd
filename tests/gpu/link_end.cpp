#include "tests/gpu/link_end.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <thread>

#include "base/check.h"
#include "base/unique_fd.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/gpu/pattern.h"

namespace convoy::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kAhead = 56;  // transfers enqueued and not passed; a link allows 64

size_t words_of(const LinkEndTask& task, uint32_t index) {
  const size_t largest = task.link.payload_bytes / 4;
  if (task.large || index % 500 == 499) return largest;
  return std::min(largest, size_t{index * 2654435761U >> 22} * 3 + 1);
}

LinkEndTask parse(const std::vector<std::string>& arguments) {
  CONVOY_CHECK_OP(arguments.size(), ==, 10U);
  LinkEndTask task;
  const auto number = [&](size_t i) { return static_cast<uint32_t>(std::stoul(arguments[i])); };
  task.sends = arguments[0] == "send";
  task.device = arguments[1];
  task.link.slots = number(2);
  task.link.payload_bytes = std::stoul(arguments[3]);
  task.link.start = {1, number(4)};
  task.link.wish = static_cast<LinkWish>(number(5));
  task.link.doorbell = static_cast<LinkDoorbell>(number(6));
  task.transfers = number(7);
  task.large = number(8) != 0;
  task.silent = number(9) != 0;
  return task;
}

// Blocks until the test closes its end.
void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// Lets at most kAhead transfers be ahead of the stream.
class Pace {
 public:
  Pace(Device& device, Stream& stream) : device_(device), stream_(stream) {}
  void enqueued() {
    if (++count_ % kBatch != 0) return;
    marks_.push_back(device_.make_event());
    marks_.back()->record(stream_);
    if (marks_.size() <= kAhead / kBatch - 1) return;
    while (!marks_.front()->passed()) std::this_thread::yield();
    marks_.pop_front();
  }

 private:
  static constexpr uint32_t kBatch = 8;
  Device& device_;
  Stream& stream_;
  uint32_t count_ = 0;
  std::deque<std::unique_ptr<Event>> marks_;
};

template <typename End>
bool connect(End& end, Stream& stream) {
  const auto connection = end.connect(stream);
  if (!connection) {
    std::printf("failed %s\n", connection.error().c_str());
  } else {
    std::printf("connected %s %s\n", link_transport_name(connection.value().transport),
                connection.value().fallback.c_str());
  }
  std::fflush(stdout);
  return connection.ok();
}

// Runs `step(index)` until it says that it was aborted or the task is done, with a thread beside it
// that releases the end when standard input ends.
template <typename End, typename Step>
void run(const LinkEndTask& task, Device& device, Stream& stream, End& end, const Buffer& wrong,
         const Step& step) {
  std::atomic<bool> finished{false};
  std::thread watcher([&] {
    device.bind_thread();
    wait_for_end_of_input();
    while (!finished.load()) {
      end.release_waiters();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto begin = Clock::now();
  Pace pace(device, stream);
  uint32_t index = 0;
  while (task.silent || task.transfers == 0 || index < task.transfers) {
    if (task.silent) {
      while (!end.aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (end.aborted() || !step(index)) break;
    pace.enqueued();
    ++index;
  }
  unsigned long long wrong_words = 0;
  stream.copy(&wrong_words, wrong.data(), sizeof(wrong_words));
  stream.synchronize();
  const auto took = std::chrono::duration<double, std::milli>(Clock::now() - begin);
  std::printf("%s %u %llu %.1f\n", end.aborted() ? "aborted" : "done", index, wrong_words,
              took.count());
  std::fflush(stdout);
  finished.store(true);
  // The watcher may be blocked in read() until the test closes its end of the pipe.
  watcher.join();
}

int run_task(const LinkEndTask& task) {
  auto region =
      SharedRegion::open(UniqueFd(kLinkEndFd), stage_link_region_bytes(task.link), "stress");
  CONVOY_CHECK(region.ok(), region.error());
  const auto device = make_cuda_device({.id = task.device});
  const auto stream = device->make_stream();
  const cudaStream_t handle = handle_of(*stream);
  const Buffer payload = device->allocate(task.link.payload_bytes, "payload");
  const Buffer wrong = device->allocate(sizeof(unsigned long long), "wrong words");
  auto* words = payload.as<uint32_t>();
  auto* wrong_count = wrong.as<unsigned long long>();
  if (task.sends) {
    auto sender = StageLinkSender::open(region.value(), task.link, device.get());
    CONVOY_CHECK(sender.ok(), sender.error());
    if (!connect(sender.value(), *stream)) return 1;
    run(task, *device, *stream, sender.value(), wrong, [&](uint32_t index) {
      const size_t count = words_of(task, index);
      fill_pattern(handle, words, count, index);
      return sender.value().send(*stream, words, count * 4, index % 97, {}) == Transfer::done;
    });
    return 0;
  }
  auto receiver = StageLinkReceiver::open(region.value(), task.link, device.get());
  CONVOY_CHECK(receiver.ok(), receiver.error());
  if (!connect(receiver.value(), *stream)) return 1;
  run(task, *device, *stream, receiver.value(), wrong, [&](uint32_t index) {
    const size_t count = words_of(task, index);
    const auto received = receiver.value().receive(*stream, words, count * 4, index % 97);
    if (!received || received.value() == Transfer::aborted) return false;
    check_pattern(handle, words, count, index, wrong_count);
    return true;
  });
  return 0;
}

}  // namespace

std::vector<std::string> to_arguments(const LinkEndTask& task) {
  return {task.sends ? "send" : "receive",
          task.device,
          std::to_string(task.link.slots),
          std::to_string(task.link.payload_bytes),
          std::to_string(task.link.start.first_transfer),
          std::to_string(static_cast<uint32_t>(task.link.wish)),
          std::to_string(static_cast<uint32_t>(task.link.doorbell)),
          std::to_string(task.transfers),
          std::to_string(task.large ? 1 : 0),
          std::to_string(task.silent ? 1 : 0)};
}

int run_link_end(const std::vector<std::string>& arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that dies leaves nobody behind
  return run_task(parse(arguments));
}

}  // namespace convoy::test
