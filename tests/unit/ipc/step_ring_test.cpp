#include "shared/ipc/step_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/futex.h"
#include "tests/unit/ipc/inline_stream.h"
#include "tests/unit/ipc/verify_step.h"

namespace convoy {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

SharedRegion make_region(const StepRingOptions& options) {
  return SharedRegion::create("ring 1", StepRingWriter::region_bytes(options));
}

StepRingReader open_reader(SharedRegion& region, const StepRingReaderOptions& options = {}) {
  auto reader = StepRingReader::open(region, options);
  EXPECT_TRUE(reader.ok()) << reader.error();
  return std::move(reader).value();
}

StepEntry begin_now(StepRingWriter& writer) {
  auto begun = writer.begin(10'000);
  EXPECT_TRUE(begun.ok()) << begun.error();
  EXPECT_TRUE(begun.value().has_value());
  return *begun.value();
}

constexpr StepRingOptions kSmall{.max_columns = 8, .max_deltas = 4, .epoch = 5};

TEST(StepRing, AnEntryArrivesAsItWasWritten) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region, {.limits = kVerifyStepLimits});
  const StepEntry written = begin_now(writer);
  fill_verify_step(written);
  written.header->group = 2;
  written.header->taps_mask = 0x15;
  written.header->link_sequence = 77;
  written.header->flags = kStepBackEveryColumn | kStepEndsPrompt;
  writer.publish();
  auto got = reader.wait_next(1000);
  ASSERT_TRUE(got.ok()) << got.error();
  const ConstStepEntry entry = *got.value();
  EXPECT_EQ(entry.header->sequence, 0u);
  EXPECT_EQ(entry.header->epoch, 5u);
  EXPECT_EQ(entry.header->kind, StepKind::verify);
  EXPECT_EQ(entry.header->group, 2u);
  EXPECT_EQ(entry.header->taps_mask, 0x15u);
  EXPECT_EQ(entry.header->link_sequence, 77u);
  EXPECT_EQ(entry.lanes[1].cache_position, 107);
  EXPECT_EQ(entry.deltas[1].page, 41);
  EXPECT_EQ(entry.control[4].cache_position, 108);
}

TEST(StepRing, BeginClearsWhatTheSlotHeldBefore) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  for (uint32_t i = 0; i < kStepRingSlots; ++i) {
    fill_verify_step(begin_now(writer));
    writer.publish();
    ASSERT_TRUE(reader.wait_next(1000).ok());
    reader.release();
  }
  const StepEntry again = begin_now(writer);
  EXPECT_EQ(again.header->lanes, 0u);
  EXPECT_EQ(again.header->delta_count, 0u);
  EXPECT_EQ(again.header->sequence, kStepRingSlots);
  EXPECT_EQ(again.lanes[1].kv_row, 0);
  EXPECT_EQ(again.lanes[1].pending_fold, -1);
}

TEST(StepRing, AFullRingBlocksTheWriterUntilASlotIsReleased) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  for (uint32_t i = 0; i < kStepRingSlots; ++i) {
    begin_now(writer).header->kind = StepKind::tables;
    writer.publish();
  }
  auto full = writer.begin(20);
  ASSERT_TRUE(full.ok());
  EXPECT_FALSE(full.value().has_value());
  ASSERT_TRUE(reader.wait_next(0).ok());
  full = writer.begin(20);
  EXPECT_FALSE(full.value().has_value()) << "reading is not releasing";
  InlineStream stream;
  reader.release(stream);
  full = writer.begin(0);
  ASSERT_TRUE(full.ok());
  EXPECT_TRUE(full.value().has_value());
}

TEST(StepRing, AnEmptyRingBlocksTheReaderUntilAnEntryIsPublished) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  auto empty = reader.wait_next(20);
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty.value().has_value());
  EXPECT_FALSE(reader.closed());
  const StepEntry entry = begin_now(writer);
  entry.header->kind = StepKind::tables;
  EXPECT_FALSE(reader.wait_next(0).value().has_value()) << "begun is not published";
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    writer.publish();
  });
  auto got = reader.wait_next(-1);
  publisher.join();
  ASSERT_TRUE(got.ok()) << got.error();
  EXPECT_TRUE(got.value().has_value());
}

TEST(StepRing, CloseWakesABlockedReaderForGood) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  std::atomic<bool> woke = false;
  const auto begin = Clock::now();
  std::thread blocked([&] {
    StepRingReader reader = open_reader(region);
    const auto got = reader.wait_next(20'000);
    woke = got.ok() && !got.value().has_value() && reader.closed();
    EXPECT_FALSE(reader.wait_next(20'000).value().has_value()) << "for good";
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  writer.close();
  blocked.join();
  EXPECT_TRUE(woke);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(StepRing, AClosedRingStillDeliversWhatWasPublished) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  for (int i = 0; i < 3; ++i) {
    begin_now(writer).header->kind = StepKind::tables;
    writer.publish();
  }
  writer.close();
  writer.close();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(reader.closed());
    auto got = reader.wait_next(0);
    ASSERT_TRUE(got.ok()) << got.error();
    ASSERT_TRUE(got.value().has_value());
    reader.release();
  }
  EXPECT_FALSE(reader.wait_next(0).value().has_value());
  EXPECT_TRUE(reader.closed());
}

TEST(StepRing, ANewEpochStartsEmptyAndVoidsTheOldEntries) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region, {.limits = kVerifyStepLimits});
  for (int i = 0; i < 5; ++i) {
    fill_verify_step(begin_now(writer));
    writer.publish();
  }
  ASSERT_TRUE(reader.wait_next(0).ok());
  reader.release();
  writer.reset(6);
  reader.reset();
  EXPECT_EQ(reader.epoch(), 6u);
  EXPECT_FALSE(reader.wait_next(0).value().has_value());
  fill_verify_step(begin_now(writer));
  writer.publish();
  auto got = reader.wait_next(0);
  ASSERT_TRUE(got.ok()) << got.error();
  EXPECT_EQ(got.value()->header->epoch, 6u);
}

TEST(StepRing, AnEntryOfAnotherEpochIsRefused) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  writer.reset(6);
  begin_now(writer).header->kind = StepKind::tables;
  writer.publish();
  const auto got = reader.wait_next(0);  // the reader was not reset
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error(), AllOf(HasSubstr("epoch is 6"), HasSubstr("allowed: 5")));
}

// 100,000 entries of varying shape between two threads, across the wrap of both counters; every
// word is checked.
TEST(StepRing, ManyEntriesArriveWholeAndInOrderAcrossTheWrap) {
  constexpr uint32_t kSteps = 100'000;
  StepRingOptions options{.max_columns = 64, .max_deltas = 32, .epoch = 9};
  options.first_sequence = 0U - kSteps / 2;
  options.spin_iterations = 100;
  SharedRegion region = make_region(options);
  StepRingWriter writer(region, options);
  const auto lanes_of = [](uint32_t step) { return 1 + step % kMaxLanes; };
  const auto deltas_of = [](uint32_t step) { return step % 33; };
  const auto mix = [](uint32_t step, uint32_t i) {
    return static_cast<int32_t>((step * 2654435761U + i * 40503U) >> 4);
  };
  std::thread producer([&] {
    for (uint32_t n = 0; n < kSteps; ++n) {
      const StepEntry entry = begin_now(writer);
      const uint32_t step = entry.header->sequence;
      entry.header->kind = StepKind::decode;
      entry.header->lanes = lanes_of(step);
      entry.header->width = 1;
      entry.header->delta_count = deltas_of(step);
      entry.header->link_sequence = ~step;
      for (uint32_t i = 0; i < entry.header->lanes; ++i) {
        const int32_t v = mix(step, i);
        entry.lanes[i] = {v, v / 2, 1, v / 3, v / 5, v / 7, 1, 0};
        entry.control[i] = {v / 2, {v, v, v}, v, 1, v / 3, v / 5};
      }
      for (uint32_t i = 0; i < entry.header->delta_count; ++i) {
        entry.deltas[i] = {mix(step, i + 100), mix(step, i + 200), mix(step, i + 300)};
      }
      writer.publish();
    }
  });
  StepRingReader reader = open_reader(region, {.limits = {}, .spin_iterations = 100});
  uint32_t wrong = 0;
  for (uint32_t n = 0; n < kSteps; ++n) {
    auto got = reader.wait_next(10'000);
    ASSERT_TRUE(got.ok()) << got.error();
    ASSERT_TRUE(got.value().has_value());
    const ConstStepEntry entry = *got.value();
    const uint32_t step = options.first_sequence + n;
    wrong += entry.header->sequence != step || entry.header->link_sequence != ~step ||
             entry.header->lanes != lanes_of(step) || entry.header->delta_count != deltas_of(step);
    for (uint32_t i = 0; i < entry.header->lanes; ++i) {
      const int32_t v = mix(step, i);
      wrong += entry.lanes[i].kv_row != v || entry.lanes[i].pending_fold != v / 7 ||
               entry.control[i].rope_position[2] != v || entry.control[i].cache_position != v / 2 ||
               entry.control[i].state_destination != v / 5;
    }
    for (uint32_t i = 0; i < entry.header->delta_count; ++i) {
      wrong += entry.deltas[i].kv_row != mix(step, i + 100) ||
               entry.deltas[i].block != mix(step, i + 200) ||
               entry.deltas[i].page != mix(step, i + 300);
    }
    reader.release();
  }
  producer.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(writer.published(), kSteps / 2);
  EXPECT_EQ(writer.consumed(), kSteps / 2);
}

TEST(StepRing, ACorruptEntryIsRefusedWithTheNameOfTheRingAndDoesNotAdvance) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region, {.limits = kVerifyStepLimits});
  const StepEntry entry = begin_now(writer);
  fill_verify_step(entry);
  writer.publish();
  entry.deltas[1].page = 100;
  for (int i = 0; i < 2; ++i) {
    const auto got = reader.wait_next(0);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error(), "step ring \"ring 1\": step 0: deltas[1].page is 100, allowed: 0..99");
    EXPECT_EQ(reader.consumed(), 0u);
  }
  entry.deltas[1].page = 99;
  EXPECT_TRUE(reader.wait_next(0).ok());
}

TEST(StepRing, CountersThatCannotBeAreRefused) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  StepRingReader reader = open_reader(region);
  auto* words = static_cast<uint32_t*>(region.data());
  futex_store_and_wake(words + 128 / 4, 33);
  const auto got = reader.wait_next(0);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error(), HasSubstr("published is 33 with 0 consumed"));
  futex_store_and_wake(words + 384 / 4, 1);
  const auto begun = writer.begin(0);
  ASSERT_FALSE(begun.ok());
  EXPECT_THAT(begun.error(), HasSubstr("consumed is 1 with 0 published"));
}

TEST(StepRing, ARegionThatIsNoRingIsRefusedByName) {
  const auto error_after = [](const std::function<void(StepRingRegionHeader*)>& damage) {
    SharedRegion region = make_region(kSmall);
    const StepRingWriter writer(region, kSmall);
    damage(static_cast<StepRingRegionHeader*>(region.data()));
    const auto opened = StepRingReader::open(region);
    return opened.ok() ? "accepted" : opened.error();
  };
  EXPECT_EQ(error_after([](auto*) {}), "accepted");
  EXPECT_THAT(error_after([](auto* header) { header->magic = 3; }), HasSubstr("magic is 3"));
  EXPECT_THAT(error_after([](auto* header) { header->version = 9; }), HasSubstr("version is 9"));
  EXPECT_THAT(error_after([](auto* header) { header->slots = 64; }), HasSubstr("slots is 64"));
  EXPECT_THAT(error_after([](auto* header) { header->max_columns = ~0U; }),
              HasSubstr("max_columns 4294967295"));
  EXPECT_THAT(error_after([](auto* header) { header->max_deltas = 1 << 20; }),
              HasSubstr("max_deltas 1048576"));
  SharedRegion tiny = SharedRegion::create("tiny", 64);
  const auto opened = StepRingReader::open(tiny);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error(), HasSubstr("region_bytes is 64"));
}

TEST(StepRingDeathTest, PublishingMoreColumnsThanTheRingHoldsIsABrokenInvariant) {
  SharedRegion region = make_region(kSmall);
  StepRingWriter writer(region, kSmall);
  const StepEntry entry = begin_now(writer);
  entry.header->lanes = 3;
  entry.header->width = 3;
  EXPECT_DEATH(writer.publish(), "9 vs 8");
}

}  // namespace
}  // namespace convoy
