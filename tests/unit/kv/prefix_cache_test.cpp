// The tree of kept prefixes: what is found, what gives way, and whose page groups they are.
#include "shared/kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace convoy {
namespace {

constexpr int kPages = 40;
constexpr int kFirstSlot = 6;

/// `blocks` names the content of each 64-token block; `tail` more tokens follow.
std::vector<int32_t> prompt_of(const std::vector<int>& blocks, int tail) {
  std::vector<int32_t> ids;
  for (const int block : blocks) {
    for (int i = 0; i < kPageTokens; ++i) ids.push_back(block * 1000 + i);
  }
  for (int i = 0; i < tail; ++i) ids.push_back(-1 - i);
  return ids;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  // Page groups as a sequence takes them, which is over at once.
  struct Pages {
    explicit Pages(PagePool& p, int count) : pool(p) {
      for (int i = 0; i < count; ++i) ids.push_back(*pool.allocate());
    }
    ~Pages() {
      for (const int32_t page : ids) pool.release(page);
    }
    PagePool& pool;
    std::vector<int32_t> ids;
  };
  std::vector<int32_t> keep(const std::vector<int>& blocks, int tail,
                            const std::vector<int>& image_tokens) {
    const Pages pages(pool_, static_cast<int>(blocks.size()) + 1);
    std::vector<StateImage> images;
    for (const int tokens : image_tokens) images.push_back({tokens, *cache_.take_slot()});
    cache_.insert(prompt_of(blocks, tail), pages.ids, images);
    return pages.ids;
  }

  PagePool pool_{kPages};
  PrefixCache cache_{pool_, {.first_slot = kFirstSlot, .slots = 3}};
};

TEST_F(PrefixCacheTest, FindsTheDeepestImageThatLeavesATokenToCompute) {
  const auto pages = keep({1, 2, 3}, 0, {64, 192});
  const PrefixHit whole = cache_.find(prompt_of({1, 2, 3}, 1));
  EXPECT_EQ(whole.tokens, 192);
  EXPECT_EQ(whole.pages, (std::vector<int32_t>{pages[0], pages[1], pages[2]}));
  const PrefixHit itself = cache_.find(prompt_of({1, 2, 3}, 0));
  EXPECT_EQ(itself.tokens, 64) << "the image at the end leaves nothing to compute";
  EXPECT_EQ(itself.known_tokens, 192);
  EXPECT_EQ(itself.pages, (std::vector<int32_t>{pages[0]}));
  EXPECT_NE(itself.state_slot, whole.state_slot);
  const PrefixHit branch = cache_.find(prompt_of({1, 2, 9}, 5));
  EXPECT_EQ(branch.tokens, 64);
  EXPECT_EQ(branch.known_tokens, 128);
  const PrefixHit none = cache_.find(prompt_of({2, 1}, 5));
  EXPECT_EQ(none.tokens, 0);
  EXPECT_EQ(none.state_slot, -1);
  EXPECT_TRUE(none.pages.empty());
  EXPECT_EQ(cache_.stats().lookups, 0U) << "nobody said that these prompts run";
  for (const PrefixHit& hit : {whole, itself, branch, none}) cache_.count(hit);
  EXPECT_EQ(cache_.stats().lookups, 4U);
  EXPECT_EQ(cache_.stats().hits, 3U);
  EXPECT_EQ(cache_.stats().hit_tokens, 192U + 64 + 64);
}

TEST_F(PrefixCacheTest, OneTokenMoreOrLessOfABlockIsAnotherBlock) {
  keep({1}, 0, {64});
  auto ids = prompt_of({1}, 1);
  EXPECT_EQ(cache_.find(ids).tokens, 64);
  ids[63] += 1;
  EXPECT_EQ(cache_.find(ids).tokens, 0);
  EXPECT_EQ(cache_.find(std::span(ids).first(63)).known_tokens, 0);
}

TEST_F(PrefixCacheTest, KeepsOnlyThePagesThatLeadToAnImage) {
  keep({1, 2, 3}, 10, {128});
  EXPECT_EQ(pool_.used(), 2);
  EXPECT_EQ(cache_.stats().pages, 2);
  EXPECT_EQ(cache_.take_changes().size(), 2U);
  EXPECT_TRUE(cache_.take_changes().empty());
}

TEST_F(PrefixCacheTest, WhatIsKnownKeepsItsPagesAndItsImage) {
  const auto first = keep({1, 2}, 0, {128});
  const int slot = cache_.find(prompt_of({1, 2}, 1)).state_slot;
  keep({1, 2}, 0, {128});
  const PrefixHit hit = cache_.find(prompt_of({1, 2}, 1));
  EXPECT_EQ(hit.pages, (std::vector<int32_t>{first[0], first[1]}));
  EXPECT_EQ(hit.state_slot, slot);
  EXPECT_EQ(pool_.used(), 2);
  // The slot of the second image is free again.
  keep({7}, 0, {64});
  keep({8}, 0, {64});
  EXPECT_EQ(cache_.stats().evictions, 0U);
}

TEST_F(PrefixCacheTest, TheImageThatWasUsedLongestAgoGivesWayWithWhatLedToNoOther) {
  keep({1, 2}, 0, {128});
  keep({1, 3}, 0, {128});
  keep({4}, 0, {64});
  (void)cache_.take_changes();
  (void)cache_.find(prompt_of({1, 2}, 1));
  EXPECT_EQ(pool_.used(), 4);
  keep({5}, 0, {64});  // in place of 1, 3
  EXPECT_EQ(cache_.find(prompt_of({1, 3}, 1)).tokens, 0);
  EXPECT_EQ(cache_.find(prompt_of({1, 3}, 1)).known_tokens, 64) << "1 leads to 1, 2";
  EXPECT_EQ(cache_.find(prompt_of({1, 2}, 1)).tokens, 128);
  EXPECT_EQ(cache_.find(prompt_of({4}, 1)).tokens, 64);
  EXPECT_EQ(pool_.used(), 4);
  const auto changes = cache_.take_changes();
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].kind, CacheChange::Kind::drop);
  EXPECT_EQ(changes[1].kind, CacheChange::Kind::keep);
  EXPECT_EQ(cache_.stats().evictions, 1U);
}

TEST_F(PrefixCacheTest, MakesRoomUntilEnoughIsFreeAndSparesWhatWasFoundLast) {
  keep({4, 5}, 0, {128});
  keep({1, 2, 3}, 0, {192});
  (void)cache_.find(prompt_of({4, 5}, 1));
  (void)cache_.find(prompt_of({1, 2, 3}, 1));
  (void)cache_.find(prompt_of({4, 5}, 1));
  EXPECT_EQ(pool_.free(), kPages - 5);
  cache_.make_room(kPages - 5);
  EXPECT_EQ(cache_.stats().images, 2) << "enough was free";
  cache_.make_room(kPages - 4);
  EXPECT_EQ(pool_.free(), kPages - 2);
  cache_.make_room(kPages - 1);
  EXPECT_EQ(pool_.free(), kPages - 2) << "what was found last stays";
  (void)cache_.find(prompt_of({9}, 1));
  cache_.make_room(kPages);
  EXPECT_EQ(pool_.free(), kPages);
  EXPECT_EQ(cache_.stats().pages, 0);
}

TEST_F(PrefixCacheTest, NothingMakesRoomWhereAllOfItWouldNotBeEnough) {
  keep({1, 2}, 0, {128});
  keep({3}, 0, {64});
  const Pages running(pool_, kPages - 10);
  const PrefixHit shared = cache_.find(prompt_of({1, 2}, 1));
  for (const int32_t page : shared.pages) pool_.share(page);  // a sequence that runs
  (void)cache_.find(prompt_of({9}, 1));
  EXPECT_EQ(pool_.free(), 7);
  cache_.make_room(9);
  EXPECT_EQ(cache_.stats().images, 2) << "only one page group is the cache's alone";
  cache_.make_room(8);
  EXPECT_EQ(pool_.free(), 8);
  for (const int32_t page : shared.pages) pool_.release(page);
}

TEST_F(PrefixCacheTest, SlotsThatAreGivenOutAreNobodyElses) {
  std::set<int32_t> slots;
  for (int i = 0; i < 3; ++i) slots.insert(cache_.take_slot().value());
  EXPECT_EQ(slots, (std::set<int32_t>{6, 7, 8}));
  EXPECT_FALSE(cache_.take_slot());
  cache_.give_back(7);
  EXPECT_EQ(cache_.take_slot(), 7);
}

class HostPrefixTest : public ::testing::Test {
 protected:
  static constexpr int kHostSlot = 100, kHostPage = 1000;
  // Two images on the device, two in host memory with five page groups there.
  PagePool pool_{8};
  PrefixCache cache_{pool_,
                     {.first_slot = 0,
                      .slots = 2,
                      .first_host_slot = kHostSlot,
                      .host_slots = 2,
                      .first_host_page = kHostPage,
                      .host_pages = 5}};

  void keep(const std::vector<int>& blocks) {
    std::vector<int32_t> pages;
    for (size_t i = 0; i < blocks.size(); ++i) pages.push_back(*pool_.allocate());
    const StateImage image{static_cast<int>(blocks.size()) * kPageTokens, *cache_.take_slot()};
    cache_.insert(prompt_of(blocks, 0), pages, {&image, 1});
    for (const int32_t page : pages) pool_.release(page);
  }
  int tokens_of(const std::vector<int>& blocks) { return cache_.find(prompt_of(blocks, 1)).tokens; }
};

TEST_F(HostPrefixTest, WhatMakesRoomGoesToHostMemoryAndComesBack) {
  keep({1, 2});
  keep({3});
  (void)cache_.take_changes();
  keep({4});  // 1, 2 makes room
  EXPECT_EQ(cache_.stats().host_images, 1);
  EXPECT_EQ(cache_.stats().host_pages, 2);
  std::vector<CacheChange::Kind> kinds;
  for (const CacheChange& change : cache_.take_changes()) kinds.push_back(change.kind);
  using Kind = CacheChange::Kind;
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::copy_page, Kind::copy_page, Kind::copy_state,
                                      Kind::drop, Kind::drop, Kind::keep}));
  EXPECT_EQ(tokens_of({1, 2}), 128);
  EXPECT_EQ(cache_.stats().restored, 1U);
  EXPECT_EQ(cache_.stats().host_images, 2) << "3 made room for it, and its own copy stays";
  EXPECT_EQ(tokens_of({3}), 64);
  EXPECT_EQ(tokens_of({4}), 64);
}

TEST_F(HostPrefixTest, HostMemoryForgetsWhatWasUsedLongestAgo) {
  for (const int block : {1, 2, 3, 4, 5}) keep({block});
  EXPECT_EQ(cache_.stats().host_images, 2);
  EXPECT_EQ(tokens_of({1}), 0);
  EXPECT_EQ(tokens_of({2}), 64);
  EXPECT_EQ(tokens_of({3}), 0) << "4 made room for 2, and was used later than 3";
  EXPECT_EQ(tokens_of({4}), 64);
}

TEST_F(HostPrefixTest, AnImageWithoutRoomInHostMemoryIsForgotten) {
  keep({1, 2, 3, 4, 5, 6});
  keep({7});
  keep({8});
  EXPECT_EQ(cache_.stats().host_images, 0);
  EXPECT_EQ(tokens_of({1, 2, 3, 4, 5, 6}), 0);
  EXPECT_EQ(pool_.used(), 2);
}

TEST_F(HostPrefixTest, AShorterPrefixServesWhereTheLongerOneCannotComeBack) {
  keep({1});
  keep({1, 2, 3});
  keep({4});
  keep({5});
  EXPECT_EQ(tokens_of({1, 2, 3}), 192);
  keep({6});
  keep({7});  // both are in host memory again
  auto reserved = pool_.reserve(pool_.free() - 1);
  ASSERT_TRUE(reserved);
  cache_.make_room(2);
  EXPECT_EQ(tokens_of({1, 2, 3}), 192) << "what is on the device makes room";
}

// Against a model of what every page group and slot holds, with and without host memory: nothing is
// found whose content is another one's, and what the model knows to be on the device is found.
class PrefixCacheModel : public ::testing::TestWithParam<PrefixCacheLayout> {};

TEST_P(PrefixCacheModel, RandomPromptsFindWhatIsTheirs) {
  using Blocks = std::vector<int>;
  constexpr int kDevicePages = 60;
  PagePool pool(kDevicePages);
  const PrefixCacheLayout layout = GetParam();
  PrefixCache cache(pool, layout);
  std::mt19937 random(11);
  std::map<int32_t, Blocks> page_content, slot_content;  // what was written or copied there last
  std::set<int32_t> kept;
  const auto follow = [&](const Blocks& blocks, const std::vector<int32_t>& pages) {
    for (const CacheChange& change : cache.take_changes()) {
      switch (change.kind) {
        case CacheChange::Kind::keep: {
          ASSERT_TRUE(kept.insert(change.to).second);
          const auto at = std::find(pages.begin(), pages.end(), change.to);
          if (at != pages.end())
            page_content[change.to] = {blocks.begin(), blocks.begin() + (at - pages.begin()) + 1};
          break;
        }
        case CacheChange::Kind::drop:
          ASSERT_EQ(kept.erase(change.to), 1U);
          break;
        case CacheChange::Kind::copy_page:
          page_content[change.to] = page_content.at(change.from);
          break;
        case CacheChange::Kind::copy_state:
          slot_content[change.to] = slot_content.at(change.from);
          break;
      }
    }
  };
  uint64_t hits = 0;
  for (int step = 0; step < 10'000; ++step) {
    Blocks blocks(1 + random() % 5);
    for (int& block : blocks) block = static_cast<int>(random() % 3);
    const int tail = static_cast<int>(random() % 3);
    const auto ids = prompt_of(blocks, tail);
    int least = 0;
    for (int n = 1; n * kPageTokens < static_cast<int>(ids.size()); ++n)
      if (cache.has_image(ids, n * kPageTokens)) least = n * kPageTokens;
    const PrefixHit hit = cache.find(ids);
    follow({}, {});
    ASSERT_GE(hit.tokens, least);
    ASSERT_LT(hit.tokens, static_cast<int>(ids.size()));
    hits += hit.tokens > 0;
    ASSERT_EQ(hit.pages.size() * kPageTokens, static_cast<size_t>(hit.tokens));
    for (size_t i = 0; i < hit.pages.size(); ++i) {
      ASSERT_LT(hit.pages[i], kDevicePages);
      ASSERT_EQ(page_content.at(hit.pages[i]),
                Blocks(blocks.begin(), blocks.begin() + static_cast<int>(i) + 1));
    }
    if (hit.tokens > 0) {
      ASSERT_EQ(slot_content.at(hit.state_slot),
                Blocks(blocks.begin(), blocks.begin() + hit.tokens / kPageTokens));
    }

    // A sequence shares what was found and takes the rest.
    std::vector<int32_t> pages = hit.pages;
    for (const int32_t page : pages) pool.share(page);
    if (random() % 4 == 0) cache.make_room(static_cast<int>(random() % kDevicePages));
    follow({}, {});
    bool fits = true;
    while (fits && pages.size() < blocks.size()) {
      const auto page = pool.allocate();
      fits = page.has_value();
      if (fits) pages.push_back(*page);
    }
    std::vector<StateImage> left;
    for (size_t n = 1; fits && n <= blocks.size(); ++n) {
      const int tokens = static_cast<int>(n) * kPageTokens;
      if (tokens <= hit.tokens || random() % 2 == 0 || cache.has_image(ids, tokens)) continue;
      if (const auto slot = cache.take_slot()) left.push_back({tokens, *slot});
    }
    follow({}, {});
    for (const StateImage& image : left)
      slot_content[image.slot] = {blocks.begin(), blocks.begin() + image.tokens / kPageTokens};
    if (fits) cache.insert(ids, pages, left);
    follow(blocks, pages);
    for (const int32_t page : pages) pool.release(page);
    ASSERT_EQ(pool.used(), static_cast<int>(kept.size()));
    ASSERT_EQ(cache.stats().pages, static_cast<int>(kept.size()));
    ASSERT_LE(cache.stats().images, layout.slots);
    ASSERT_LE(cache.stats().host_images, layout.host_slots);
    ASSERT_LE(cache.stats().host_pages, layout.host_pages);
  }
  EXPECT_GT(hits, 2000U);
  EXPECT_GT(cache.stats().evictions, 1000U);
  EXPECT_EQ(cache.stats().restored > 500, layout.host_slots > 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PrefixCacheModel,
                         ::testing::Values(PrefixCacheLayout{.first_slot = 0, .slots = 7},
                                           PrefixCacheLayout{.first_slot = 4,
                                                             .slots = 5,
                                                             .first_host_slot = 50,
                                                             .host_slots = 9,
                                                             .first_host_page = 500,
                                                             .host_pages = 12},
                                           PrefixCacheLayout{.first_slot = 4,
                                                             .slots = 2,
                                                             .first_host_slot = 50,
                                                             .host_slots = 40,
                                                             .first_host_page = 500,
                                                             .host_pages = 100}),
                         [](const auto& test) {
                           return "With" + std::to_string(test.param.host_slots) + "InHostMemory";
                         });

}  // namespace
}  // namespace convoy
