#include "shared/kv/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <random>

namespace convoy {
namespace {

using testing::HasSubstr;

TEST(Sequence, PageDeltasNameEveryNewBlockOnce) {
  PagePool pool(8);
  std::vector<BlockTableDelta> deltas;
  Sequence sequence(pool, 3, 1000);
  ASSERT_TRUE(sequence.extend(64, deltas).ok());
  ASSERT_EQ(deltas.size(), 1U);
  EXPECT_EQ(deltas[0].kv_row, 3);
  EXPECT_EQ(deltas[0].block, 0);
  EXPECT_EQ(deltas[0].page, 0);
  ASSERT_TRUE(sequence.extend(1, deltas).ok());   // position 64 opens block 1
  ASSERT_TRUE(sequence.extend(63, deltas).ok());  // fills it
  ASSERT_EQ(deltas.size(), 2U);
  EXPECT_EQ(deltas[1].block, 1);
  ASSERT_TRUE(sequence.extend(129, deltas).ok());  // blocks 2, 3 and 4
  ASSERT_EQ(deltas.size(), 5U);
  EXPECT_EQ(deltas[4].block, 4);
  EXPECT_EQ(deltas[4].page, 4);
  EXPECT_EQ(sequence.pages(), 5);
  EXPECT_EQ(sequence.length(), 257);
}

TEST(Sequence, BeginsBehindAPrefixOfSharedPageGroups) {
  PagePool pool(8);
  std::vector<BlockTableDelta> deltas;
  auto first = std::make_unique<Sequence>(pool, 0, 1000);
  ASSERT_TRUE(first->extend(150, deltas).ok());
  deltas.clear();
  Sequence second(pool, 1, 1000);
  second.adopt(first->page_groups().first(2), 9, deltas);
  EXPECT_EQ(second.length(), 128);
  EXPECT_EQ(second.state_slot(), 9);
  ASSERT_EQ(deltas.size(), 2U);
  EXPECT_EQ(deltas[1].kv_row, 1);
  EXPECT_EQ(deltas[1].block, 1);
  EXPECT_EQ(deltas[1].page, 1);
  const auto span = second.extend(10, deltas);
  ASSERT_TRUE(span.ok());
  EXPECT_EQ(span.value().first_position, 128);
  EXPECT_EQ(span.value().state_source, 9);
  EXPECT_EQ(span.value().state_destination, 3);
  EXPECT_EQ(deltas.back().block, 2);
  EXPECT_EQ(deltas.back().page, 3) << "a page group of its own";
  first.reset();
  EXPECT_EQ(pool.used(), 3) << "the shared ones stay";
  EXPECT_DEATH(second.adopt({}, 9, deltas), "length_");
}

TEST(Sequence, LeavesItsStateWhereItIsTold) {
  PagePool pool(8);
  std::vector<BlockTableDelta> deltas;
  Sequence sequence(pool, 1, 1000);
  EXPECT_EQ(sequence.extend(64, deltas, 7).value().state_destination, 7);
  const auto next = sequence.extend(5, deltas);
  EXPECT_EQ(next.value().state_source, 7);
  EXPECT_EQ(next.value().state_destination, 3);
  sequence.leave_state_at_page_ends(8);
  EXPECT_EQ(sequence.page_end_tokens(), 0);
  for (int length = 70; length <= 200; ++length) {
    const auto span = sequence.extend(1, deltas).value();
    EXPECT_EQ(span.state_destination == 8, length % 64 == 0) << length;
    EXPECT_EQ(span.state_source == 8, length % 64 == 1) << length;
  }
  EXPECT_EQ(sequence.page_end_tokens(), 192);
}

TEST(Sequence, StateSlotsAlternateFromTheZeroState) {
  PagePool pool(8);
  std::vector<BlockTableDelta> deltas;
  Sequence sequence(pool, 2, 1000);
  int32_t last_destination = -1;
  int32_t position = 0;
  for (int i = 0; i < 6; ++i) {
    const auto span = sequence.extend(7, deltas);
    ASSERT_TRUE(span.ok());
    EXPECT_EQ(span.value().first_position, position);
    EXPECT_EQ(span.value().state_source, last_destination);  // -1 at first
    EXPECT_NE(span.value().state_destination, span.value().state_source);
    EXPECT_TRUE(span.value().state_destination == 4 || span.value().state_destination == 5);
    last_destination = span.value().state_destination;
    position += 7;
  }
}

TEST(Sequence, FullContextIsAnErrorAndChangesNothing) {
  PagePool pool(8);
  std::vector<BlockTableDelta> deltas;
  Sequence sequence(pool, 0, 100);
  ASSERT_TRUE(sequence.extend(60, deltas).ok());
  const auto refused = sequence.extend(41, deltas);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error(), HasSubstr("101 tokens"));
  EXPECT_THAT(refused.error(), HasSubstr("100"));
  ASSERT_FALSE(sequence.extend(std::numeric_limits<int>::max(), deltas).ok());
  EXPECT_EQ(deltas.size(), 1U);
  EXPECT_EQ(sequence.length(), 60);
  EXPECT_EQ(pool.used(), 1);
  const auto last = sequence.extend(40, deltas);  // exactly full
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last.value().state_source, 1);  // the refused calls did not turn the slots
}

TEST(Sequence, ExhaustedPoolIsAnErrorAndChangesNothing) {
  PagePool pool(3);
  std::vector<BlockTableDelta> deltas;
  Sequence first(pool, 0, 1000);
  Sequence second(pool, 1, 1000);
  ASSERT_TRUE(first.extend(128, deltas).ok());
  const auto refused = second.extend(65, deltas);  // two pages, one is free
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error(), HasSubstr("2 more page groups needed, 1 of 3 free"));
  EXPECT_EQ(deltas.size(), 2U);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(second.length(), 0);
  const auto span = second.extend(64, deltas);
  ASSERT_TRUE(span.ok());
  EXPECT_EQ(span.value().state_source, -1);
}

TEST(Sequence, TakesItsReservationFirstAndGivesTheRestBack) {
  PagePool pool(4);
  std::vector<BlockTableDelta> deltas;
  {
    Sequence sequence(pool, 0, 1000, std::move(*pool.reserve(2)));
    EXPECT_EQ(sequence.unreserved_pages(64).value(), 0);
    EXPECT_EQ(sequence.unreserved_pages(129).value(), 1);
    const int32_t first_other = *pool.allocate();
    const int32_t second_other = *pool.allocate();
    ASSERT_EQ(pool.free(), 0);
    ASSERT_TRUE(sequence.extend(65, deltas).ok());  // both promised pages
    EXPECT_EQ(pool.reserved(), 0);
    const auto refused = sequence.extend(64, deltas);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error(), HasSubstr("1 more page groups needed, 0 of 4 free"));
    pool.release(first_other);
    ASSERT_TRUE(sequence.extend(64, deltas).ok());  // beyond its reservation
    pool.release(second_other);
  }
  EXPECT_EQ(pool.free(), 4);
  {
    Sequence sequence(pool, 0, 1000, std::move(*pool.reserve(3)));
    ASSERT_TRUE(sequence.extend(1, deltas).ok());
    EXPECT_EQ(pool.reserved(), 2);
  }
  EXPECT_EQ(pool.free(), 4);
}

TEST(Sequence, AnEmptyStepIsABrokenInvariant) {
  PagePool pool(1);
  std::vector<BlockTableDelta> deltas;
  Sequence sequence(pool, 0, 10);
  EXPECT_DEATH((void)sequence.extend(0, deltas), "count");
  EXPECT_DEATH((void)sequence.extend(-1, deltas), "count");
}

TEST(Sequence, DestructionGivesItsPagesBack) {
  PagePool pool(4);
  std::vector<BlockTableDelta> deltas;
  {
    Sequence sequence(pool, 0, 1000);
    ASSERT_TRUE(sequence.extend(256, deltas).ok());
    EXPECT_EQ(pool.used(), 4);
  }
  EXPECT_EQ(pool.used(), 0);
}

// What a stage would know: the block tables that the deltas build.
struct SequenceModel {
  std::unique_ptr<Sequence> sequence;
  int length = 0;
  int slot = -1;
  std::map<int32_t, int32_t> blocks;
};

TEST(Sequence, InvariantsHoldOverManyRandomOperations) {
  constexpr int kCapacity = 24;
  constexpr int kLanes = 5;
  constexpr int kMaxTokens = 700;
  PagePool pool(kCapacity);
  std::vector<SequenceModel> lanes(kLanes);
  std::mt19937 random(2);
  int refused_pages = 0;
  int refused_context = 0;
  for (int i = 0; i < 10'000; ++i) {
    const int lane = static_cast<int>(random() % kLanes);
    SequenceModel& model = lanes[static_cast<size_t>(lane)];
    if (!model.sequence || random() % 40 == 0) {
      model = {};
      model.sequence = std::make_unique<Sequence>(pool, lane, kMaxTokens);
    }
    const int count = random() % 4 == 0 ? static_cast<int>(1 + random() % 150) : 1;
    const int used_before = pool.used();
    const int needed = (model.length + count + kPageTokens - 1) / kPageTokens -
                       static_cast<int>(model.blocks.size());
    std::vector<BlockTableDelta> deltas;
    const auto span = model.sequence->extend(count, deltas);
    const bool too_long = model.length + count > kMaxTokens;
    ASSERT_EQ(span.ok(), !too_long && needed <= kCapacity - used_before);
    if (!span.ok()) {
      ++(too_long ? refused_context : refused_pages);
      ASSERT_TRUE(deltas.empty());
      ASSERT_EQ(pool.used(), used_before);
    } else {
      ASSERT_EQ(deltas.size(), static_cast<size_t>(needed));
      for (const BlockTableDelta& delta : deltas) {
        ASSERT_EQ(delta.kv_row, lane);
        ASSERT_EQ(delta.block, static_cast<int32_t>(model.blocks.size()));
        model.blocks[delta.block] = delta.page;
      }
      ASSERT_EQ(span.value().first_position, model.length);
      ASSERT_EQ(span.value().state_source, model.slot);
      model.slot = span.value().state_destination;
      ASSERT_EQ(model.slot / 2, lane);
      model.length += count;
    }
    ASSERT_EQ(model.sequence->length(), model.length);
    std::map<int32_t, int> owners;
    for (const SequenceModel& m : lanes) {
      for (const auto& [block, page] : m.blocks)
        ASSERT_EQ(++owners[page], 1) << "page " << page << " belongs to two";
    }
    ASSERT_EQ(pool.used(), static_cast<int>(owners.size()));
  }
  EXPECT_GT(refused_pages, 10);
  EXPECT_GT(refused_context, 10);
}

}  // namespace
}  // namespace convoy
