#include "shared/stage/link_layout.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kStages = 3;

struct LinkBytes : testing::Test {
  LinkBytes() {
    config.hidden_size = 4096;
    limits.prefill_chunk_tokens = 1024;
    limits.lanes = 4;
  }
  uint64_t bytes(int rank, LinkWish wish, bool shares_device = false,
                 DeviceKind kind = DeviceKind::cuda) const {
    return link_bytes(config, limits, kind, {rank, kStages, shares_device}, {.wish = wish});
  }
  ModelConfig config;
  StageLimits limits;
};

TEST_F(LinkBytes, PinnedSlotsTakeNothingOfACard) {
  for (int rank = 0; rank < kStages; ++rank) EXPECT_EQ(bytes(rank, LinkWish::pinned, true), 0U);
}

TEST_F(LinkBytes, SlotsOfAPeerLinkLieWithTheReceiverInWholePieces) {
  for (int rank = 1; rank < kStages; ++rank) {
    const uint64_t slots = 2 * uint64_t{1024} * 4096 * 2;
    EXPECT_GE(bytes(rank, LinkWish::peer), slots) << rank;
    EXPECT_LE(bytes(rank, LinkWish::peer), slots + 2 * kMiB) << rank;
    EXPECT_EQ(bytes(rank, LinkWish::peer) % (2 * kMiB), 0U);
  }
  // The last rank sends one column per lane back to rank 0: little, but a piece.
  EXPECT_EQ(bytes(0, LinkWish::peer), 2 * kMiB);
}

TEST_F(LinkBytes, LocalOnesOnlyWhereTheSenderIsOnTheSameCard) {
  EXPECT_EQ(bytes(1, LinkWish::local, false), 0U);
  EXPECT_EQ(bytes(1, LinkWish::local, true), bytes(1, LinkWish::peer));
}

TEST_F(LinkBytes, OnCpuDevicesTheRegionCountsForItsSender) {
  for (int rank = 0; rank < kStages; ++rank) {
    EXPECT_EQ(
        bytes(rank, LinkWish::pinned, true, DeviceKind::cpu),
        stage_link_region_bytes(link_options(config, limits, DeviceKind::cpu, {rank, kStages})));
  }
  EXPECT_GT(bytes(1, LinkWish::pinned, true, DeviceKind::cpu), 2 * uint64_t{1024} * 4096 * 4);
  EXPECT_LT(bytes(2, LinkWish::pinned, true, DeviceKind::cpu), kMiB);
}

TEST_F(LinkBytes, OneStageHasNone) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda})
    EXPECT_EQ(link_bytes(config, limits, kind, {0, 1, true}, {.wish = LinkWish::peer}), 0U);
}

}  // namespace
}  // namespace convoy
