// How two ends settle their transport, with devices that enqueue but compute on the host.
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/ipc/link_ends.h"
#include "tests/unit/ipc/link_pattern.h"
#include "tests/unit/ipc/queued_stream.h"

namespace convoy {
namespace {

constexpr StageLinkOptions kBase{.slots = 3, .payload_bytes = 1 << 20, .start = {7, 0U - 5}};

StageLinkOptions with(LinkWish wish, LinkDoorbell doorbell = LinkDoorbell::words) {
  StageLinkOptions options = kBase;
  options.wish = wish;
  options.doorbell = doorbell;
  return options;
}

// A link with both ends open.
struct Link {
  explicit Link(const StageLinkOptions& link_options, const std::string& sender_uuid = "a",
                const std::string& receiver_uuid = "b")
      : options(link_options),
        region(make_link_region(options)),
        sending_device(sender_uuid),
        receiving_device(receiver_uuid) {
    sender.emplace(region, options, &sending_device);
    auto opened = StageLinkReceiver::open(region, options, &receiving_device);
    EXPECT_TRUE(opened.ok()) << opened.error();
    receiver.emplace(std::move(opened).value());
  }

  void connect() {
    auto received =
        std::async(std::launch::async, [&] { return receiver->connect(receiving_stream); });
    sender_result.emplace(sender->connect(sending_stream));
    receiver_result.emplace(received.get());
  }

  // Transfers over a few laps, every word checked.
  void expect_transfers() {
    std::thread other([&] {
      std::vector<uint32_t> payload(options.payload_bytes / 4);
      for (uint32_t n = 0; n < kTransfers; ++n) {
        const LinkPattern pattern(499 * n, options.payload_bytes);
        pattern.fill(payload.data());
        EXPECT_EQ(sender->send(sending_stream, payload.data(), pattern.bytes(), n, {}),
                  Transfer::done);
        sending_stream.synchronize();
      }
    });
    std::vector<uint32_t> payload(options.payload_bytes / 4);
    for (uint32_t n = 0; n < kTransfers; ++n) {
      const LinkPattern pattern(499 * n, options.payload_bytes);
      const LinkExpectation expected{options.start.first_transfer + n, pattern.bytes(), n, 0};
      EXPECT_TRUE(is_done(receiver->receive(receiving_stream, payload.data(), pattern.bytes(), n)));
      receiving_stream.synchronize();
      const Status header = receiver->check_received(expected);
      EXPECT_TRUE(header.ok()) << header.error();
      EXPECT_EQ(pattern.wrong_words(payload.data()), 0U) << "transfer " << n;
    }
    other.join();
  }

  void expect_connected(LinkTransport transport, const std::string& fallback) {
    for (const auto* result : {&*sender_result, &*receiver_result}) {
      ASSERT_TRUE(result->ok()) << result->error();
      EXPECT_STREQ(link_transport_name(result->value().transport), link_transport_name(transport));
      EXPECT_EQ(result->value().fallback.empty(), fallback.empty());
      EXPECT_NE(result->value().fallback.find(fallback), std::string::npos)
          << result->value().fallback;
    }
    EXPECT_EQ(sender->transport(), transport);
    EXPECT_EQ(receiver->transport(), transport);
    EXPECT_EQ(sender->next_transfer(), options.start.first_transfer);
    EXPECT_EQ(receiver->next_transfer(), options.start.first_transfer);
    expect_transfers();
  }

  static constexpr uint32_t kTransfers = 14;
  StageLinkOptions options;
  SharedRegion region;
  QueuedDevice sending_device, receiving_device;
  QueuedStream sending_stream, receiving_stream;
  std::optional<StageLinkSender> sender;
  std::optional<StageLinkReceiver> receiver;
  std::optional<Result<LinkConnection>> sender_result, receiver_result;
};

TEST(LinkConnect, PinnedWithEitherDoorbell) {
  for (const LinkDoorbell doorbell : {LinkDoorbell::words, LinkDoorbell::events}) {
    Link link(with(LinkWish::pinned, doorbell));
    link.connect();
    link.expect_connected(LinkTransport::pinned, "");
  }
}

TEST(LinkConnect, PeerBetweenDevicesAndLocalOnOne) {
  for (const LinkDoorbell doorbell : {LinkDoorbell::words, LinkDoorbell::events}) {
    Link peer(with(LinkWish::peer, doorbell), "a", "b");
    peer.connect();
    peer.expect_connected(LinkTransport::peer, "");
    Link local(with(LinkWish::peer, doorbell), "a", "a");
    local.connect();
    local.expect_connected(LinkTransport::local, "");
  }
}

TEST(LinkConnect, WishedLocalIsPinnedBetweenDevicesWithoutComplaint) {
  Link apart(with(LinkWish::local), "a", "b");
  apart.connect();
  apart.expect_connected(LinkTransport::pinned, "");
  Link together(with(LinkWish::local), "a", "a");
  together.connect();
  together.expect_connected(LinkTransport::local, "");
}

TEST(LinkConnect, MemoryThatCannotBeHadFallsBackAndSaysWhy) {
  Link unreachable(with(LinkWish::peer));
  unreachable.sending_device.no_peer_access = true;
  unreachable.connect();
  unreachable.expect_connected(LinkTransport::pinned, "no peer access");
  Link full(with(LinkWish::peer));
  full.receiving_device.out_of_memory = true;
  full.connect();
  full.expect_connected(LinkTransport::pinned, "no memory for link");
  Link refused(with(LinkWish::peer));
  refused.receiving_device.no_memory_export = true;
  refused.connect();
  refused.expect_connected(LinkTransport::pinned, "no export of memory");
}

// As containers and WSL do it. Nothing else rings instead.
TEST(LinkConnect, EventsThatAreRefusedAreAnErrorThatNamesTheOtherDoorbell) {
  for (const auto& [fault, why] :
       {std::pair{&QueuedDevice::no_events, "no events"},
        std::pair{&QueuedDevice::no_event_export, "no export of events"},
        std::pair{&QueuedDevice::no_event_import, "no import of events"}}) {
    for (const bool sending : {true, false}) {
      Link link(with(LinkWish::pinned, LinkDoorbell::events));
      (sending ? link.sending_device : link.receiving_device).*fault = true;
      using Connected = Result<LinkConnection>;
      auto sent =
          std::async(std::launch::async, [&] { return link.sender->connect(link.sending_stream); });
      auto received = std::async(std::launch::async,
                                 [&] { return link.receiver->connect(link.receiving_stream); });
      const Connected failed = (sending ? sent : received).get();
      // As a run does.
      StageLinkEnd& other = sending ? static_cast<StageLinkEnd&>(*link.receiver) : *link.sender;
      release_until_ready<Connected>(sending ? received : sent, [&] { other.release_waiters(); });
      ASSERT_FALSE(failed.ok());
      EXPECT_NE(failed.error().find(why), std::string::npos) << failed.error();
      EXPECT_NE(failed.error().find("--doorbell memops"), std::string::npos) << failed.error();
    }
  }
}

// A platform that promises peer access and delivers elsewhere.
TEST(LinkConnect, MemoryThatArrivesWrongFallsBackAndSaysWhy) {
  for (const LinkDoorbell doorbell : {LinkDoorbell::words, LinkDoorbell::events}) {
    Link link(with(LinkWish::peer, doorbell));
    link.sending_device.import_offset = 64;
    link.connect();
    link.expect_connected(LinkTransport::pinned, "arrived wrong");
  }
}

// A stream whose writes reach nobody.
class MuteStream : public QueuedStream {
 public:
  void write_value(uint32_t*, uint32_t) override {}
};

TEST(LinkConnect, ADoorbellThatNobodyHearsIsAnErrorOnBothEnds) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the receiver reads what it was not told of: the race is the fault it provokes";
#endif
  for (const LinkWish wish : {LinkWish::pinned, LinkWish::peer}) {
    Link link(with(wish));
    MuteStream mute;
    LinkConnectOptions soon;
    soon.test_timeout_ms = 100;
    auto received = std::async(std::launch::async,
                               [&] { return link.receiver->connect(link.receiving_stream, soon); });
    const auto sent = link.sender->connect(mute, soon);
    const auto receiver_result = received.get();
    ASSERT_FALSE(sent.ok());
    ASSERT_FALSE(receiver_result.ok());
    EXPECT_NE(receiver_result.error().find("did not arrive"), std::string::npos)
        << receiver_result.error();
    EXPECT_TRUE(mute.idle());
    EXPECT_TRUE(link.receiving_stream.idle());
  }
}

TEST(LinkConnect, AnEndThatNeverComesIsAnErrorAfterTheTimeout) {
  Link link(with(LinkWish::peer));
  LinkConnectOptions soon;
  soon.timeout_ms = 80;
  const auto result = link.sender->connect(link.sending_stream, soon);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error(), "stage link \"0 -> 1\": the other end does not answer");
  EXPECT_TRUE(link.sending_stream.idle());
}

TEST(LinkConnect, AnAbortEndsItAndIsNotForgotten) {
  Link link(with(LinkWish::peer));
  auto waiting =
      std::async(std::launch::async, [&] { return link.receiver->connect(link.receiving_stream); });
  release_until_ready<Result<LinkConnection>>(waiting, [&] { link.receiver->release_waiters(); });
  const auto result = waiting.get();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().find("aborted"), std::string::npos) << result.error();
  EXPECT_TRUE(link.receiver->aborted());
}

TEST(LinkConnect, EndsThatWishDifferentlyDoNotOpen) {
  SharedRegion region = make_link_region(kBase);
  format_stage_link(region, with(LinkWish::peer));
  const auto wish = StageLinkReceiver::open(region, with(LinkWish::pinned));
  ASSERT_FALSE(wish.ok());
  EXPECT_EQ(wish.error(), "stage link \"0 -> 1\": wish is 1, expected 0");
  const auto doorbell = StageLinkReceiver::open(region, with(LinkWish::peer, LinkDoorbell::events));
  ASSERT_FALSE(doorbell.ok());
  EXPECT_EQ(doorbell.error(), "stage link \"0 -> 1\": doorbell is 0, expected 1");
}

// No device, or one that runs inline: nothing to settle, and nobody to wait for.
TEST(LinkConnect, WithoutADeviceItReturnsAtOnce) {
  SharedRegion region = make_link_region(kBase);
  StageLinkSender sender(region, kBase);
  InlineStream stream;
  const auto result = sender.connect(stream);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().transport, LinkTransport::pinned);
}

}  // namespace
}  // namespace convoy
