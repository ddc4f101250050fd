#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <vector>

#include "shared/ipc/stage_link.h"
#include "tests/unit/ipc/link_ends.h"
#include "tests/unit/ipc/queued_stream.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// A stream that enqueues, as a CUDA stream does: the host runs ahead of everything.
TEST(EnqueuedStageLink, AHostThatEnqueuesAheadGetsTheSameBytes) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 2 << 20, .start = {4, 0U - 7}};
  constexpr uint32_t kAhead = 8;
  SharedRegion region = make_link_region(options);
  QueuedDevice device;
  StageLinkSender sender(region, options, &device);
  auto opened = StageLinkReceiver::open(region, options, &device);
  ASSERT_TRUE(opened.ok()) << opened.error();
  StageLinkReceiver& receiver = opened.value();
  QueuedStream in;
  QueuedStream out;
  const auto bytes_of = [](uint32_t n) { return n % 3 == 0 ? size_t{2} << 20 : size_t{40} * n; };
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<std::byte>> sent(kAhead);
    std::vector<std::vector<std::byte>> received(kAhead);
    std::vector<std::array<uint32_t, 3>> live(kAhead);
    std::vector<std::array<uint32_t, 3>> received_live(kAhead);
    const uint32_t first = receiver.next_transfer();
    // The receiver's whole work first: nothing of it can be done yet.
    for (uint32_t n = 0; n < kAhead; ++n) {
      received[n].resize(bytes_of(n));
      EXPECT_TRUE(
          is_done(receiver.receive(out, received[n].data(), bytes_of(n), n, received_live[n])));
    }
    for (uint32_t n = 0; n < kAhead; ++n) {
      sent[n].assign(bytes_of(n), static_cast<std::byte>(n * 16 + static_cast<uint32_t>(round)));
      live[n] = {n, n + 1, n + 2};
      EXPECT_EQ(sender.send(in, sent[n].data(), bytes_of(n), n, live[n]), Transfer::done);
    }
    in.synchronize();
    out.synchronize();
    EXPECT_EQ(received, sent);
    EXPECT_EQ(received_live, live);
    for (uint32_t n = 0; n < kAhead; ++n) {
      const Status status = receiver.check_received({first + n, bytes_of(n), n, 3});
      EXPECT_TRUE(status.ok()) << status.error();
    }
    const Status wrong = receiver.check_received({first + 1, 41, 1, 3});
    ASSERT_FALSE(wrong.ok());
    EXPECT_THAT(wrong.error(), HasSubstr("bytes is 40, expected 41"));
  }
}

TEST(EnqueuedStageLink, AbortEndsStreamsThatAreBlockedWithWorkEnqueuedAhead) {
  const StageLinkOptions options{.slots = 1, .payload_bytes = 4096, .start = {}};
  SharedRegion region = make_link_region(options);
  QueuedDevice device;
  StageLinkSender sender(region, options, &device);
  QueuedStream in;
  const std::vector<std::byte> payload(4096);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(sender.send(in, payload.data(), payload.size(), 1, {}), Transfer::done);
  }
  auto idle = std::async(std::launch::async, [&] { in.synchronize(); });
  EXPECT_EQ(idle.wait_for(milliseconds(30)), std::future_status::timeout);
  EXPECT_LT(release_until_ready(idle, [&] { sender.release_waiters(); }), milliseconds(100));
  EXPECT_EQ(sender.send(in, payload.data(), payload.size(), 1, {}), Transfer::aborted);
}

}  // namespace
}  // namespace convoy
