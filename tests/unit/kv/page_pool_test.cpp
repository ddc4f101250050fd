#include "shared/kv/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace convoy {
namespace {

TEST(PagePool, AgreesWithASetOverManyRandomOperations) {
  constexpr int kCapacity = 37;
  PagePool pool(kCapacity);
  std::set<int32_t> free;
  for (int32_t page = 0; page < kCapacity; ++page) free.insert(page);
  std::vector<int32_t> held;
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) {
    // Phases that fill and phases that drain, so that both ends are reached.
    const bool take = random() % 10 < ((i / 500) % 2 == 0 ? 8U : 2U);
    if (take) {
      const auto page = pool.allocate();
      if (free.empty()) {
        ASSERT_FALSE(page.has_value());
      } else {
        ASSERT_EQ(page, *free.begin());
        free.erase(free.begin());
        held.push_back(*page);
      }
    } else if (!held.empty()) {
      const size_t at = random() % held.size();
      pool.release(held[at]);
      free.insert(held[at]);
      held.erase(held.begin() + static_cast<ptrdiff_t>(at));
    }
    ASSERT_EQ(pool.used(), static_cast<int>(held.size()));
    ASSERT_EQ(pool.capacity(), kCapacity);
  }
}

TEST(PagePool, ExhaustionIsNoPageAndOneReleaseGivesThatPage) {
  PagePool pool(2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(PagePool, EmptyPoolHasNothing) {
  PagePool pool(0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_EQ(pool.used(), 0);
}

TEST(PagePool, ReleaseOfAFreeOrUnknownPageIsABrokenInvariant) {
  PagePool pool(2);
  ASSERT_EQ(pool.allocate(), 0);
  EXPECT_DEATH(pool.release(1), "page group 1");
  EXPECT_DEATH(pool.release(2), "page group 2");
  EXPECT_DEATH(pool.release(-1), "page group -1");
  pool.release(0);
  EXPECT_DEATH(pool.release(0), "page group 0");
}

}  // namespace
}  // namespace convoy
