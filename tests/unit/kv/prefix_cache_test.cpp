// The tree of kept prefixes: what is found, what gives way, and whose page groups they are.
#include "shared/kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
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
    for (const int tokens : image_tokens) images.push_back({tokens, *cache_.take_slot(-1)});
    cache_.insert(prompt_of(blocks, tail), pages.ids, images);
    return pages.ids;
  }

  PagePool pool_{kPages};
  PrefixCache cache_{pool_, kFirstSlot, 3};
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
  EXPECT_FALSE(changes[0].kept);
  EXPECT_TRUE(changes[1].kept);
  EXPECT_EQ(cache_.stats().evictions, 1U);
}

TEST_F(PrefixCacheTest, MakesRoomUntilEnoughIsFreeAndSparesWhatIsAskedFor) {
  keep({1, 2, 3}, 0, {192});
  keep({4, 5}, 0, {128});
  const int spared = cache_.find(prompt_of({1, 2, 3}, 1)).state_slot;
  (void)cache_.find(prompt_of({4, 5}, 1));
  EXPECT_EQ(pool_.free(), kPages - 5);
  cache_.make_room(kPages - 5, -1);
  EXPECT_EQ(cache_.stats().images, 2) << "enough was free";
  cache_.make_room(kPages - 4, spared);
  EXPECT_EQ(pool_.free(), kPages - 3) << "the newer one goes where the older one is spared";
  cache_.make_room(kPages, spared);
  EXPECT_EQ(pool_.free(), kPages - 3);
  cache_.make_room(kPages, -1);
  EXPECT_EQ(pool_.free(), kPages);
  EXPECT_EQ(cache_.stats().pages, 0);
}

TEST_F(PrefixCacheTest, SlotsThatAreGivenOutAreNobodyElses) {
  std::set<int32_t> slots;
  for (int i = 0; i < 3; ++i) slots.insert(cache_.take_slot(-1).value());
  EXPECT_EQ(slots, (std::set<int32_t>{6, 7, 8}));
  EXPECT_FALSE(cache_.take_slot(-1));
  cache_.give_back(7);
  EXPECT_EQ(cache_.take_slot(-1), 7);
}

// Against a list of what is kept: the same prompts are found, and page groups have their owners.
TEST(PrefixCacheModel, RandomPromptsAreFoundAsAListOfThemSays) {
  PagePool pool(60);
  constexpr int kSlots = 7;
  PrefixCache cache(pool, 0, kSlots);
  std::mt19937 random(11);
  std::map<int32_t, std::vector<int>> images;   // slot: the blocks before it
  std::map<int32_t, std::vector<int>> content;  // kept page: the blocks up to its own
  const auto random_blocks = [&] {
    std::vector<int> blocks(1 + random() % 5);
    for (int& block : blocks) block = static_cast<int>(random() % 3);
    return blocks;
  };
  const auto is_prefix = [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
  };
  uint64_t hits = 0;
  for (int step = 0; step < 10'000; ++step) {
    const auto blocks = random_blocks();
    const int tail = static_cast<int>(random() % 3);
    const auto ids = prompt_of(blocks, tail);
    const PrefixHit hit = cache.find(ids);
    int expected = 0;
    for (const auto& [slot, prefix] : images) {
      const int tokens = static_cast<int>(prefix.size()) * kPageTokens;
      if (is_prefix(prefix, blocks) && tokens < static_cast<int>(ids.size()))
        expected = std::max(expected, tokens);
    }
    // What gives way is the cache's choice: the list follows take_changes() below.
    ASSERT_EQ(hit.tokens, expected);
    hits += hit.tokens > 0;
    for (size_t i = 0; i < hit.pages.size(); ++i)
      ASSERT_EQ(content.at(hit.pages[i]),
                std::vector<int>(blocks.begin(), blocks.begin() + static_cast<int>(i) + 1));
    if (hit.tokens > 0)
      ASSERT_EQ(images.at(hit.state_slot).size() * kPageTokens, static_cast<size_t>(hit.tokens));

    // A sequence shares what was found and takes the rest.
    std::vector<int32_t> pages = hit.pages;
    for (const int32_t page : pages) pool.share(page);
    if (random() % 4 == 0)
      cache.make_room(static_cast<int>(random() % 60), hit.state_slot);
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
      if (const auto slot = cache.take_slot(hit.state_slot)) {
        images.erase(*slot);
        left.push_back({tokens, *slot});
      }
    }
    if (fits) cache.insert(ids, pages, left);
    for (const StateImage& image : left)
      images[image.slot] = {blocks.begin(), blocks.begin() + image.tokens / kPageTokens};
    for (const PageChange& change : cache.take_changes()) {
      if (!change.kept) {
        ASSERT_EQ(content.erase(change.page), 1U);
        continue;
      }
      const auto at = std::find(pages.begin(), pages.end(), change.page) - pages.begin();
      content[change.page] = {blocks.begin(), blocks.begin() + at + 1};
    }
    std::erase_if(images, [&](const auto& image) {
      const auto& [slot, prefix] = image;
      return !cache.has_image(prompt_of(prefix, 0), static_cast<int>(prefix.size()) * kPageTokens);
    });
    for (const int32_t page : pages) pool.release(page);
    ASSERT_EQ(pool.used(), static_cast<int>(content.size()));
    ASSERT_EQ(cache.stats().images, static_cast<int>(images.size()));
    ASSERT_LE(images.size(), static_cast<size_t>(kSlots));
  }
  EXPECT_GT(hits, 2000U);
  EXPECT_GT(cache.stats().evictions, 1000U);
}

}  // namespace
}  // namespace convoy
