#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "shared/ipc/waiter_release.h"
#include "tests/unit/ipc/link_ends.h"
#include "tests/unit/ipc/queued_stream.h"

namespace convoy {
namespace {

TEST(WaiterReleaseTest, ReleasesAtOnceAgainAndAgainAndNeverAfterItsEnd) {
  std::atomic<int> calls{0};
  {
    WaiterRelease release([&] { ++calls; });
    EXPECT_EQ(calls, 0);
    release.begin();
    EXPECT_GE(calls, 1);
    std::thread([&] { release.begin(); }).join();
    while (calls < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int at_the_end = calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, at_the_end);
}

// Where no thread can be made any more, a program still has to end.
TEST(WaiterReleaseTest, BeginningNeedsNoNewThread) {
  std::atomic<int> calls{0};
  WaiterRelease release([&] { ++calls; });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit full{0, before.rlim_max};  // no memory for a stack
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &full), 0);
  bool thrown = false;
  try {
    release.begin();
  } catch (const std::system_error&) {
    thrown = true;
  }
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_FALSE(thrown);
  while (!thrown && calls < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The peer still lives: it drains what was sent before the release, and so writes over it.
TEST(WaiterReleaseTest, AStreamPassesAlthoughALivingPeerWritesItsWordAgain) {
  const StageLinkOptions options{.slots = 1, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  QueuedDevice device;
  StageLinkSender sender(region, options, &device);
  auto receiver = open_receiver(region, options);
  QueuedStream sending;
  uint32_t value = 1;
  for (int i = 0; i < 4; ++i)  // the last three wait
    EXPECT_EQ(sender.send(sending, &value, sizeof(value), 1, {}), Transfer::done);
  WaiterRelease release([&] { sender.release_waiters(); });
  release.begin();
  InlineStream receiving;
  uint32_t got = 0;
  EXPECT_TRUE(is_done(receiver.receive(receiving, &got, sizeof(got))));  // writes drained = 1
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!sending.idle() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(sending.idle());
}

}  // namespace
}  // namespace convoy
