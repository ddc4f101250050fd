#include "shared/ipc/stage_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "tests/unit/ipc/inline_stream.h"
#include "tests/unit/ipc/link_ends.h"
#include "tests/unit/ipc/link_pattern.h"

namespace convoy {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(LinkPieces, SmallPayloadsAreOnePieceAndLargeOnesUpToEightOfAtLeast256KiB) {
  EXPECT_EQ(link_pieces(0).count, 1u);
  EXPECT_EQ(link_pieces(kLinkPieceBytes - 1).count, 1u);
  for (size_t bytes = kLinkPieceBytes; bytes < 40 * kLinkPieceBytes; bytes += 77'777) {
    const LinkPieces pieces = link_pieces(bytes);
    ASSERT_LE(pieces.count, kLinkPieces);
    ASSERT_EQ(pieces.count, std::min<size_t>(bytes / kLinkPieceBytes, kLinkPieces)) << bytes;
    const size_t last = bytes - (pieces.count - 1) * pieces.piece_bytes;
    ASSERT_GE(last, kLinkPieceBytes) << bytes;
    ASSERT_GE(pieces.piece_bytes, kLinkPieceBytes) << bytes;
    ASSERT_LT(last, pieces.piece_bytes + 8 * 256) << "pieces are about equal";
  }
}

// Sizes, live words and contents vary with the transfer; `send` and `receive` alternate between
// copying and acquire().
void run_many(const StageLinkOptions& options, uint32_t transfers) {
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  std::thread producer([&] {
    InlineStream stream;
    std::vector<uint32_t> payload(options.payload_bytes / 4);
    for (uint32_t n = 0; n < transfers; ++n) {
      const uint32_t transfer = sender.next_transfer();
      const LinkPattern pattern(transfer, options.payload_bytes);
      if (transfer % 7 == 3) {
        void* const slot = sender.acquire(stream);
        ASSERT_NE(slot, nullptr);
        pattern.fill(static_cast<uint32_t*>(slot));
        ASSERT_EQ(sender.commit(stream, pattern.bytes(), pattern.columns(), pattern.live()),
                  Transfer::done);
      } else {
        pattern.fill(payload.data());
        ASSERT_EQ(
            sender.send(stream, payload.data(), pattern.bytes(), pattern.columns(), pattern.live()),
            Transfer::done);
      }
    }
  });
  StageLinkReceiver receiver = open_receiver(region, options);
  InlineStream stream;
  std::vector<uint32_t> received(options.payload_bytes / 4);
  uint32_t wrong = 0;
  for (uint32_t n = 0; n < transfers; ++n) {
    const LinkPattern pattern(receiver.next_transfer(), options.payload_bytes);
    std::array<uint32_t, kMaxLanes> live{};
    const auto result = receiver.receive(stream, received.data(), pattern.bytes(),
                                         pattern.columns(), {live.data(), pattern.live().size()});
    if (!is_done(result)) {
      ADD_FAILURE() << (result.ok() ? "aborted" : result.error());
      sender.release_waiters();
      break;
    }
    wrong += pattern.wrong_words(received.data()) + pattern.wrong_live(live.data());
  }
  producer.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(StageLink, ManyTransfersOfVaryingSizesArriveWithEveryWordRight) {
  run_many({.slots = 2, .payload_bytes = 3 << 20, .start = {}}, 100'000);
}

TEST(StageLink, CountersAndSequencesWrapWithoutReusingASlotTooEarly) {
  // 3 slots: 2^32 is no multiple of it.
  run_many({.slots = 3, .payload_bytes = 64 << 10, .start = {7, 0U - 5'000}}, 10'000);
  // `filled` wraps where 8 * transfer does.
  run_many({.slots = 2, .payload_bytes = 64 << 10, .start = {7, (1U << 29) - 5'000}}, 10'000);
  run_many({.slots = 1, .payload_bytes = 3 << 20, .start = {7, (1U << 31) - 500}}, 1'000);
}

TEST(StageLink, TheReceiverHasTheFirstPieceBeforeTheLastIsWritten) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 8 * kLinkPieceBytes, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  std::atomic<int> pieces_out = 0;
  InlineStream in;
  InlineStream out;
  int pieces_in = 0;
  bool overlapped = true;
  out.after_copy = [&](size_t bytes) { pieces_out += bytes >= kLinkPieceBytes; };
  in.before_copy = [&](size_t bytes) {
    // Each piece is held back until the one before it has been copied out.
    if (bytes < kLinkPieceBytes || !overlapped) return;
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    while (pieces_out < pieces_in && Clock::now() < deadline) std::this_thread::yield();
    overlapped = pieces_out >= pieces_in;
    ++pieces_in;
  };
  std::vector<std::byte> received(options.payload_bytes);
  std::thread consumer(
      [&] { EXPECT_TRUE(is_done(receiver.receive(out, received.data(), received.size()))); });
  const std::vector<std::byte> payload(options.payload_bytes, std::byte{5});
  EXPECT_EQ(sender.send(in, payload.data(), payload.size(), 1, {}), Transfer::done);
  consumer.join();
  EXPECT_TRUE(overlapped);
  EXPECT_EQ(pieces_in, 8);
  EXPECT_EQ(received, payload);
}

TEST(StageLink, AFullLinkHoldsTheSenderBackUntilATransferIsDrained) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  std::atomic<int> sent = 0;
  std::thread producer([&] {
    InlineStream stream;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(sender.send(stream, &i, sizeof(i), 1, {}), Transfer::done);
      ++sent;
    }
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(sent, 2);
  InlineStream stream;
  for (int i = 0; i < 3; ++i) {
    int value = -1;
    EXPECT_TRUE(is_done(receiver.receive(stream, &value, sizeof(value))));
    EXPECT_EQ(value, i);
  }
  producer.join();
  EXPECT_EQ(sent, 3);
}

TEST(StageLink, AnEmptyLinkHoldsTheReceiverBackUntilATransferIsThere) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  InlineStream stream;
  int value = -1;
  auto received = std::async(std::launch::async, [&] {
    InlineStream other;
    return is_done(receiver.receive(other, &value, sizeof(value)));
  });
  EXPECT_EQ(received.wait_for(milliseconds(50)), std::future_status::timeout);
  const int sent = 42;
  EXPECT_EQ(sender.send(stream, &sent, sizeof(sent), 1, {}), Transfer::done);
  EXPECT_TRUE(received.get());
  EXPECT_EQ(value, 42);
}

TEST(StageLink, AbortReleasesABlockedSenderWithin100MsAndLeavesTheSlotsAlone) {
  const StageLinkOptions options{.slots = 1, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  InlineStream stream;
  const int first = 1;
  const int second = 2;
  EXPECT_EQ(sender.send(stream, &first, sizeof(first), 1, {}), Transfer::done);
  auto blocked = std::async(std::launch::async, [&] {
    InlineStream other;
    return sender.send(other, &second, sizeof(second), 1, {});
  });
  EXPECT_EQ(blocked.wait_for(milliseconds(30)), std::future_status::timeout);
  EXPECT_LT(release_until_ready(blocked, [&] { sender.release_waiters(); }), milliseconds(100));
  EXPECT_EQ(blocked.get(), Transfer::aborted);
  EXPECT_TRUE(sender.aborted());
  EXPECT_EQ(sender.send(stream, &second, sizeof(second), 1, {}), Transfer::aborted);
  EXPECT_EQ(sender.acquire(stream), nullptr);
  EXPECT_EQ(sender.commit(stream, 4, 1, {}), Transfer::aborted);
  int value = -1;
  EXPECT_TRUE(is_done(receiver.receive(stream, &value, sizeof(value))));
  EXPECT_EQ(value, first);
}

TEST(StageLink, AbortReleasesABlockedReceiverWithin100MsAndLeavesTheDestinationAlone) {
  const StageLinkOptions options{.slots = 1, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  const StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  int value = -1;
  auto blocked = std::async(std::launch::async, [&] {
    InlineStream stream;
    return is_aborted(receiver.receive(stream, &value, sizeof(value)));
  });
  EXPECT_EQ(blocked.wait_for(milliseconds(30)), std::future_status::timeout);
  EXPECT_LT(release_until_ready(blocked, [&] { receiver.release_waiters(); }), milliseconds(100));
  EXPECT_TRUE(blocked.get());
  InlineStream stream;
  EXPECT_TRUE(is_aborted(receiver.receive(stream, &value, sizeof(value))));
  EXPECT_EQ(value, -1);
  EXPECT_EQ(receiver.next_transfer(), 0u);
}

// The peer is alive and writes its words over the released ones; afterwards a new epoch works.
TEST(StageLink, AbortUnderFullTrafficEndsAndANewEpochIsClean) {
  StageLinkOptions options{.slots = 2, .payload_bytes = 4096, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  for (uint32_t epoch = 0; epoch < 50; ++epoch) {
    auto sending = std::async(std::launch::async, [&] {
      InlineStream stream;
      std::vector<uint32_t> payload(1024);
      for (;;) {
        const LinkPattern pattern(sender.next_transfer() + epoch, options.payload_bytes);
        pattern.fill(payload.data());
        if (sender.send(stream, payload.data(), pattern.bytes(), pattern.columns(),
                        pattern.live()) == Transfer::aborted) {
          return true;
        }
      }
    });
    auto receiving = std::async(std::launch::async, [&]() -> std::string {
      InlineStream stream;
      std::vector<uint32_t> payload(1024);
      for (;;) {
        const LinkPattern pattern(receiver.next_transfer() + epoch, options.payload_bytes);
        const auto result =
            receiver.receive(stream, payload.data(), pattern.bytes(), pattern.columns());
        if (!result.ok()) return result.error();
        if (result.value() == Transfer::aborted) return "aborted";
        if (pattern.wrong_words(payload.data()) != 0) return "wrong words";
      }
    });
    std::this_thread::sleep_for(milliseconds(2));
    // Either end first: the other one's transfers may go on for a while.
    if (epoch % 2 == 0) {
      release_until_ready(sending, [&] { sender.release_waiters(); });
      release_until_ready(receiving, [&] { receiver.release_waiters(); });
    } else {
      release_until_ready(receiving, [&] { receiver.release_waiters(); });
      release_until_ready(sending, [&] { sender.release_waiters(); });
    }
    ASSERT_TRUE(sending.get());
    ASSERT_EQ(receiving.get(), "aborted") << "epoch " << epoch;
    const LinkEpoch next{epoch + 1, 0U - 20 * epoch};
    sender.reset(next);
    receiver.reset(next);
  }
}

TEST(StageLink, AHeaderThatDiffersFromTheExpectationIsAnErrorWithTheLinkAndBothValues) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 4096, .start = {3, 0}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  StageLinkReceiver receiver = open_receiver(region, options);
  InlineStream stream;
  const std::vector<uint32_t> payload(64, 9);
  const std::array<uint32_t, 2> sent_live = {1, 0};
  EXPECT_EQ(sender.send(stream, payload.data(), 256, 4, sent_live), Transfer::done);
  std::vector<uint32_t> received(1024, 1);
  const auto error_of = [&](size_t bytes, uint32_t columns, std::span<uint32_t> live = {}) {
    const auto result = receiver.receive(stream, received.data(), bytes, columns, live);
    return result.ok() ? "no error" : result.error();
  };
  std::array<uint32_t, 3> live{};
  EXPECT_EQ(error_of(128, 4), "stage link \"0 -> 1\", transfer 0: bytes is 256, expected 128");
  EXPECT_THAT(error_of(256, 3), HasSubstr("columns is 4, expected 3"));
  EXPECT_THAT(error_of(256, 4, live), HasSubstr("lanes is 2, expected 3"));
  auto* header =
      reinterpret_cast<LinkHeader*>(static_cast<std::byte*>(region.data()) + link_header_offset(0));
  header->sequence = 9;
  EXPECT_THAT(error_of(256, 4), HasSubstr("sequence is 9, expected 0"));
  header->sequence = 0;
  header->epoch = 2;
  EXPECT_THAT(error_of(256, 4), HasSubstr("epoch is 2, expected 3"));
  header->epoch = 3;
  EXPECT_EQ(received, std::vector<uint32_t>(1024, 1)) << "untouched";
  EXPECT_EQ(error_of(256, 4, {live.data(), 2}), "no error");
  EXPECT_EQ(received[63], 9u);
  EXPECT_EQ(live[0], 1u);
  EXPECT_EQ(live[1], 0u);
}

TEST(StageLink, ARegionThatIsNotThisLinkIsRefusedByName) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 4096, .start = {3, 10}};
  const auto error_after = [&](const std::function<void(StageLinkRegionHeader*)>& damage) {
    SharedRegion region = make_link_region(options);
    format_stage_link(region, options);
    damage(static_cast<StageLinkRegionHeader*>(region.data()));
    const auto receiver = StageLinkReceiver::open(region, options);
    const auto sender = StageLinkSender::open(region, options);
    EXPECT_EQ(sender.ok(), receiver.ok());
    if (receiver.ok()) return std::string("accepted");
    EXPECT_EQ(sender.error(), receiver.error());
    return receiver.error();
  };
  EXPECT_EQ(error_after([](auto*) {}), "accepted");
  EXPECT_THAT(error_after([](auto* h) { h->magic = 1; }), HasSubstr("magic is 1"));
  EXPECT_THAT(error_after([](auto* h) { h->version = 7; }), HasSubstr("version is 7, expected 3"));
  EXPECT_THAT(error_after([](auto* h) { h->slots = 3; }), HasSubstr("slots is 3, expected 2"));
  EXPECT_THAT(error_after([](auto* h) { h->payload_bytes = 1; }),
              HasSubstr("payload_bytes is 1, expected 4096"));
  EXPECT_THAT(error_after([](auto* h) { h->epoch = 4; }), HasSubstr("epoch is 4, expected 3"));
  EXPECT_THAT(error_after([](auto* h) { h->first_transfer = 4; }),
              HasSubstr("first_transfer is 4, expected 10"));
  SharedRegion small = SharedRegion::create("small", stage_link_region_bytes(options) - 256);
  const auto opened = StageLinkReceiver::open(small, options);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error(), HasSubstr(std::to_string(stage_link_region_bytes(options))));
}

TEST(StageLinkDeathTest, APayloadLargerThanASlotIsABrokenInvariant) {
  const StageLinkOptions options{.slots = 2, .payload_bytes = 64, .start = {}};
  SharedRegion region = make_link_region(options);
  StageLinkSender sender(region, options);
  InlineStream stream;
  const std::array<std::byte, 65> payload{};
  EXPECT_DEATH(std::ignore = sender.send(stream, payload.data(), 65, 1, {}), "65 vs 64");
}

}  // namespace
}  // namespace convoy
