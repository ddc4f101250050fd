// Prefill that overlaps stages: does a ring of ranks over real links come to an end?
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/check.h"
#include "shared/ipc/stage_link.h"
#include "tests/unit/ipc/inline_stream.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Where a deadlock is expected.
constexpr milliseconds kShort{300};

struct PipelineOptions {
  uint32_t stages = 2;
  uint32_t chunks = 20;
  uint32_t forward_slots = 2;
  uint32_t back_slots = 2;
  uint32_t lead = 1;           ///< rank 0 issues chunk i + lead before it consumes chunk i
  milliseconds stall{20'000};  ///< without a move for so long it is a deadlock
};

// One link per rank: link r goes to rank (r + 1) % stages, so the last one is `back`.
class Pipeline {
 public:
  explicit Pipeline(const PipelineOptions& options) : options_(options) {
    regions_.reserve(options.stages);
    for (uint32_t rank = 0; rank < options.stages; ++rank) {
      const uint32_t slots =
          rank + 1 == options.stages ? options.back_slots : options.forward_slots;
      const StageLinkOptions link{.slots = slots, .payload_bytes = 64, .start = {}};
      regions_.push_back(
          SharedRegion::create("link " + std::to_string(rank), stage_link_region_bytes(link)));
      senders_.emplace_back(regions_.back(), link);
      receivers_.push_back(std::move(StageLinkReceiver::open(regions_.back(), link)).value());
    }
  }

  /// Runs all ranks. False: nothing moved for a while; then everything is released.
  bool run() {
    std::vector<std::thread> threads;
    threads.emplace_back([this] { run_first(); });
    for (uint32_t rank = 1; rank < options_.stages; ++rank) {
      threads.emplace_back([this, rank] { run_later(rank); });
    }
    const bool ended = wait_for_end();
    const auto released_at = std::chrono::steady_clock::now();
    while (!ended && running_ > 0) {
      CONVOY_CHECK(std::chrono::steady_clock::now() - released_at < std::chrono::seconds(20),
                   "a blocked rank was not released");
      for (auto& sender : senders_) sender.release_waiters();
      for (auto& receiver : receivers_) receiver.release_waiters();
      std::this_thread::sleep_for(milliseconds(1));
    }
    for (auto& thread : threads) thread.join();
    return ended;
  }

  /// Chunks that came back to rank 0 in order, each touched once by every rank.
  uint32_t right_chunks() const { return right_; }

 private:
  bool wait_for_end() {
    uint32_t seen = 0;
    auto last_move = std::chrono::steady_clock::now();
    while (running_ > 0) {
      std::this_thread::sleep_for(milliseconds(1));
      const auto now = std::chrono::steady_clock::now();
      if (moves_ != seen) {
        seen = moves_;
        last_move = now;
      }
      if (now - last_move > options_.stall) return false;
    }
    return true;
  }

  void run_first() {
    InlineStream stream;
    uint32_t issued = 0;
    for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      for (; issued < options_.chunks && issued <= chunk + options_.lead; ++issued) {
        const uint32_t value = issued * 1000;
        if (senders_.front().send(stream, &value, sizeof(value), 1, {}) == Transfer::aborted) {
          --running_;
          return;
        }
        ++moves_;
      }
      uint32_t value = 0;
      const auto result = receivers_.back().receive(stream, &value, sizeof(value));
      if (!result.ok() || result.value() == Transfer::aborted) break;
      right_ += value == chunk * 1000 + options_.stages - 1;
      ++moves_;
    }
    --running_;
  }

  // As a worker's stream does it: the outgoing link's `drained` is waited for at the start of the
  // step.
  void run_later(uint32_t rank) {
    InlineStream stream;
    for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      auto* slot = static_cast<uint32_t*>(senders_[rank].acquire(stream));
      if (slot == nullptr) break;
      const auto result = receivers_[rank - 1].receive(stream, slot, sizeof(*slot));
      if (!result.ok() || result.value() == Transfer::aborted) break;
      ++*slot;
      if (senders_[rank].commit(stream, sizeof(*slot), 1, {}) == Transfer::aborted) break;
      ++moves_;
    }
    --running_;
  }

  PipelineOptions options_;
  std::vector<SharedRegion> regions_;
  std::vector<StageLinkSender> senders_;
  std::vector<StageLinkReceiver> receivers_;
  std::atomic<uint32_t> running_{options_.stages};
  std::atomic<uint32_t> moves_{0};
  uint32_t right_ = 0;
};

TEST(PrefillPipeline, NeverDeadlocksWithTwoForwardSlotsAndAsManyBackSlotsAsStages) {
  for (uint32_t stages = 2; stages <= 12; ++stages) {
    Pipeline pipeline({.stages = stages, .back_slots = stages, .lead = stages - 1});
    ASSERT_TRUE(pipeline.run()) << stages << " stages";
    EXPECT_EQ(pipeline.right_chunks(), 20u) << stages << " stages";
  }
}

TEST(PrefillPipeline, DeadlocksWhenEveryChunkIsIssuedBeforeOneIsConsumedThroughOneBackSlot) {
  for (const uint32_t stages : {2U, 6U}) {
    Pipeline pipeline({.stages = stages, .back_slots = 1, .lead = 19, .stall = kShort});
    EXPECT_FALSE(pipeline.run()) << stages << " stages";
    EXPECT_LT(pipeline.right_chunks(), 20u);
  }
}

// Chunk n enters link 0 once chunk n - 2 left it, and so on along the ring: rank 0 may lead by the
// slots of the ring less one.
TEST(PrefillPipeline, TheLargestSafeLeadIsTheNumberOfSlotsInTheRingLessOne) {
  constexpr uint32_t kStages = 4;
  for (const uint32_t back_slots : {1U, 2U, 4U}) {
    const uint32_t slots = 2 * (kStages - 1) + back_slots;
    Pipeline safe({.stages = kStages, .back_slots = back_slots, .lead = slots - 1});
    EXPECT_TRUE(safe.run()) << back_slots << " back slots";
    Pipeline one_more(
        {.stages = kStages, .back_slots = back_slots, .lead = slots, .stall = kShort});
    EXPECT_FALSE(one_more.run()) << back_slots << " back slots";
  }
}

}  // namespace
}  // namespace convoy
