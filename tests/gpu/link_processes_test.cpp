// Links between two processes on real cards: every word checked by the card, aborts, kills, and
// nothing left behind. CONVOY_STRESS_TRANSFERS sets how many transfers each kind of link makes.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/first_device.h"
#include "tests/gpu/link_process.h"

namespace convoy::test {
namespace {

constexpr int kStartMs = 60'000;
constexpr uint32_t kDefaultTransfers = 20'000;

uint32_t stress_transfers() {
  const char* text = std::getenv("CONVOY_STRESS_TRANSFERS");
  return text == nullptr ? kDefaultTransfers : static_cast<uint32_t>(std::stoul(text));
}

struct LinkKind {
  std::string name;
  int from, to;  // ordinals
  LinkWish wish;
  LinkDoorbell doorbell;

  LinkTransport expected() const {
    if (wish == LinkWish::pinned) return LinkTransport::pinned;
    return from == to ? LinkTransport::local : LinkTransport::peer;
  }
};
void PrintTo(const LinkKind& kind, std::ostream* out) {
  *out << kind.name;
}

// Both ends on the first card, and every ordered pair of cards.
std::vector<LinkKind> all_kinds() {
  const int cards = std::max(static_cast<int>(list_cuda_devices().devices.size()), 1);
  std::vector<std::pair<int, int>> pairs{{0, 0}};
  for (int from = 0; from < cards; ++from) {
    for (int to = 0; to < cards; ++to) {
      if (from != to) pairs.emplace_back(from, to);
    }
  }
  std::vector<LinkKind> kinds;
  for (const auto& [from, to] : pairs) {
    for (const LinkWish wish : {LinkWish::pinned, LinkWish::peer}) {
      for (const LinkDoorbell doorbell : {LinkDoorbell::words, LinkDoorbell::events}) {
        LinkKind kind{"", from, to, wish, doorbell};
        kind.name = "From" + std::to_string(from) + "To" + std::to_string(to) + "_" +
                    link_transport_name(kind.expected()) +
                    (doorbell == LinkDoorbell::words ? "_words" : "_events");
        kinds.push_back(kind);
      }
    }
  }
  return kinds;
}

// What run_link_end() prints at its end.
struct Report {
  std::string how;
  unsigned transfers = 0;
  unsigned long long wrong = 0;
  double ms = 0;
};
Report parse_report(const std::string& line) {
  Report report;
  std::vector<char> how(line.size() + 1);
  if (std::sscanf(line.c_str(), "%s %u %llu %lf", how.data(), &report.transfers, &report.wrong,
                  &report.ms) == 4)
    report.how = how.data();
  return report;
}

class LinkProcesses : public GpuTest, public testing::WithParamInterface<LinkKind> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) free_before_ = free_bytes();
  }
  // The cards must be as they were: this process is not part of any link.
  void TearDown() override {
    if (IsSkipped()) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!is_free_again() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::vector<uint64_t> now = free_bytes();
    for (size_t card = 0; card < now.size(); ++card)
      EXPECT_GE(now[card] + kSlack, free_before_[card]) << "memory stayed taken on card " << card;
  }

  LinkEndTask task(bool sends, size_t payload_bytes) const {
    const LinkKind& kind = GetParam();
    LinkEndTask task;
    task.sends = sends;
    task.device = "cuda:" + std::to_string(sends ? kind.from : kind.to);
    // Many slots: two processes on one card take turns of milliseconds.
    task.link = {.slots = 120,
                 .payload_bytes = payload_bytes,
                 .start = {1, 0U - 1000},
                 .wish = kind.wish,
                 .doorbell = kind.doorbell};
    return task;
  }
  static SharedRegion region_for(const LinkEndTask& task) {
    SharedRegion region = SharedRegion::create("stress", stage_link_region_bytes(task.link));
    format_stage_link(region, task.link);
    return region;
  }
  // False where the cards cannot reach each other: the link is pinned then, and says why.
  static bool is_connected(LinkProcess& process) {
    const std::string line = process.line(kStartMs);
    const std::string wanted =
        "connected " + std::string(link_transport_name(GetParam().expected())) + " ";
    EXPECT_EQ(line.substr(0, wanted.size()), wanted) << line;
    return line == wanted;
  }

 private:
  static constexpr uint64_t kSlack = uint64_t{8} << 20;
  static std::vector<uint64_t> free_bytes() {
    static std::vector<std::unique_ptr<Device>> cards = [] {
      std::vector<std::unique_ptr<Device>> opened;
      for (const auto& entry : list_cuda_devices().devices)
        opened.push_back(make_cuda_device({.id = "cuda:" + std::to_string(entry.ordinal)}));
      return opened;
    }();
    std::vector<uint64_t> bytes;
    for (const auto& card : cards) bytes.push_back(card->info().free_bytes);
    return bytes;
  }
  bool is_free_again() const {
    const std::vector<uint64_t> now = free_bytes();
    for (size_t card = 0; card < now.size(); ++card) {
      if (now[card] + kSlack < free_before_[card]) return false;
    }
    return true;
  }
  std::vector<uint64_t> free_before_;
};

TEST_P(LinkProcesses, EveryWordOfEveryTransferArrives) {
  LinkEndTask sends = task(true, size_t{1} << 20);
  LinkEndTask receives = task(false, size_t{1} << 20);
  sends.transfers = receives.transfers = stress_transfers();
  const SharedRegion region = region_for(sends);
  LinkProcess sender(sends, region);
  LinkProcess receiver(receives, region);
  ASSERT_TRUE(is_connected(sender));
  ASSERT_TRUE(is_connected(receiver));
  const int limit_ms = 20'000 + static_cast<int>(sends.transfers);  // a millisecond each
  const Report report = parse_report(receiver.line(limit_ms));
  EXPECT_EQ(report.how, "done");
  EXPECT_EQ(report.transfers, sends.transfers);
  EXPECT_EQ(report.wrong, 0U);
  EXPECT_EQ(parse_report(sender.line(5000)).how, "done");
  std::printf("%s: %u transfers, %.1f us each\n", GetParam().name.c_str(), report.transfers,
              report.ms * 1000 / report.transfers);
  sender.tell_to_stop();
  receiver.tell_to_stop();
  EXPECT_EQ(sender.wait(10'000), 0);
  EXPECT_EQ(receiver.wait(10'000), 0);
}

TEST_P(LinkProcesses, AnAbortInTheMiddleEndsBothEnds) {
  const LinkEndTask sends = task(true, size_t{1} << 20);
  const LinkEndTask receives = task(false, size_t{1} << 20);
  const SharedRegion region = region_for(sends);
  LinkProcess sender(sends, region);
  LinkProcess receiver(receives, region);
  ASSERT_TRUE(is_connected(sender));
  ASSERT_TRUE(is_connected(receiver));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  sender.tell_to_stop();
  receiver.tell_to_stop();
  for (LinkProcess* process : {&sender, &receiver}) {
    const Report report = parse_report(process->line(5000));
    EXPECT_EQ(report.how, "aborted");
    EXPECT_GT(report.transfers, 0U);
    EXPECT_EQ(process->wait(5000), 0);
  }
}

// The receiver's stream waits for a transfer that never comes.
TEST_P(LinkProcesses, AKilledProcessWithABlockedWaitIsGoneAtOnce) {
  LinkEndTask sends = task(true, size_t{1} << 20);
  sends.silent = true;
  const LinkEndTask receives = task(false, size_t{1} << 20);
  const SharedRegion region = region_for(sends);
  LinkProcess sender(sends, region);
  LinkProcess receiver(receives, region);
  ASSERT_TRUE(is_connected(sender));
  ASSERT_TRUE(is_connected(receiver));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  receiver.kill();
  EXPECT_EQ(receiver.wait(5000), 128 + 9);
  sender.tell_to_stop();
  EXPECT_EQ(parse_report(sender.line(5000)).how, "aborted");
  EXPECT_EQ(sender.wait(5000), 0);
}

// Either end dies while large payloads are on the way; the other one is released by its own side.
TEST_P(LinkProcesses, AKillInTheMiddleOfACopyLeavesAnEndThatItsOwnSideCanRelease) {
  for (const bool kill_sender : {true, false}) {
    LinkEndTask sends = task(true, size_t{16} << 20);
    LinkEndTask receives = task(false, size_t{16} << 20);
    sends.link.slots = receives.link.slots = 4;
    sends.large = receives.large = true;
    const SharedRegion region = region_for(sends);
    LinkProcess sender(sends, region);
    LinkProcess receiver(receives, region);
    ASSERT_TRUE(is_connected(sender));
    ASSERT_TRUE(is_connected(receiver));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    LinkProcess& victim = kill_sender ? sender : receiver;
    LinkProcess& survivor = kill_sender ? receiver : sender;
    victim.kill();
    EXPECT_EQ(victim.wait(5000), 128 + 9);
    survivor.tell_to_stop();
    const Report report = parse_report(survivor.line(5000));
    if (GetParam().doorbell == LinkDoorbell::words) {
      EXPECT_EQ(report.how, "aborted");
      EXPECT_EQ(survivor.wait(5000), 0);
    } else {
      // A stream that waits for a dead process's event is nobody's to release: the process ends.
      survivor.kill();
      EXPECT_NE(survivor.wait(5000), -1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cards, LinkProcesses, testing::ValuesIn(all_kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace convoy::test
