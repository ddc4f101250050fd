#include "shared/kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

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

// What the pool should know, kept the slow way.
struct PoolModel {
  explicit PoolModel(int capacity) : owners(static_cast<size_t>(capacity), 0) {}
  int used() const {
    return static_cast<int>(
        std::count_if(owners.begin(), owners.end(), [](int count) { return count > 0; }));
  }
  int free(int reserved) const { return static_cast<int>(owners.size()) - used() - reserved; }
  int32_t lowest() const {
    return static_cast<int32_t>(std::find(owners.begin(), owners.end(), 0) - owners.begin());
  }
  std::vector<int> owners;
};

TEST(PagePool, ReservationsAndOwnersAgreeWithAModelOverManyRandomOperations) {
  constexpr int kCapacity = 41;
  PagePool pool(kCapacity);
  PoolModel model(kCapacity);
  std::vector<PageReservation> reservations;
  std::vector<int32_t> held;  // one entry per owner
  std::mt19937 random(3);
  int refused_reserve = 0, refused_allocate = 0, shared = 0;
  const auto reserved = [&] {
    int count = 0;
    for (const PageReservation& r : reservations) count += r.count();
    return count;
  };
  for (int i = 0; i < 10'000; ++i) {
    const bool filling = (i / 400) % 2 == 0;
    switch (random() % 6) {
      case 0: {
        const int count = static_cast<int>(random() % 9);
        const bool fits = count <= model.free(reserved());
        auto reservation = pool.reserve(count);
        ASSERT_EQ(reservation.has_value(), fits);
        if (!fits) {
          ++refused_reserve;
        } else {
          ASSERT_EQ(reservation->count(), count);
          reservations.push_back(std::move(*reservation));
        }
        break;
      }
      case 1: {
        if (!filling && random() % 4 != 0) break;
        const bool fits = model.free(reserved()) > 0;
        const auto page = pool.allocate();
        ASSERT_EQ(page.has_value(), fits);
        if (!fits) {
          ++refused_allocate;
          break;
        }
        ASSERT_EQ(*page, model.lowest());
        ++model.owners[static_cast<size_t>(*page)];
        held.push_back(*page);
        break;
      }
      case 2: {
        if (reservations.empty()) break;
        PageReservation& reservation = reservations[random() % reservations.size()];
        if (reservation.count() == 0) break;
        const int32_t page = pool.allocate(reservation);
        ASSERT_EQ(page, model.lowest());
        ++model.owners[static_cast<size_t>(page)];
        held.push_back(page);
        break;
      }
      case 3: {
        if (held.empty() || random() % 3 != 0) break;
        const int32_t page = held[random() % held.size()];
        pool.share(page);
        ++model.owners[static_cast<size_t>(page)];
        held.push_back(page);
        ++shared;
        break;
      }
      case 4: {
        if (held.empty() || (filling && random() % 3 != 0)) break;
        const size_t at = random() % held.size();
        pool.release(held[at]);
        --model.owners[static_cast<size_t>(held[at])];
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        break;
      }
      default: {
        if (reservations.empty() || (filling && random() % 3 != 0)) break;
        // Moving keeps the promise, destroying gives back what is left of it.
        const size_t at = random() % reservations.size();
        PageReservation moved = std::move(reservations[at]);
        ASSERT_EQ(reservations[at].count(), 0);
        reservations.erase(reservations.begin() + static_cast<ptrdiff_t>(at));
        if (random() % 2 == 0) reservations.push_back(std::move(moved));
      }
    }
    ASSERT_EQ(pool.used(), model.used());
    ASSERT_EQ(pool.reserved(), reserved());
    ASSERT_EQ(pool.free(), model.free(reserved()));
    ASSERT_EQ(pool.used() + pool.reserved() + pool.free(), kCapacity);
    for (int32_t page = 0; page < kCapacity; ++page)
      ASSERT_EQ(pool.owners(page), model.owners[static_cast<size_t>(page)]);
  }
  EXPECT_GT(refused_reserve, 50);
  EXPECT_GT(refused_allocate, 50);
  EXPECT_GT(shared, 50);
}

TEST(PagePool, APromisedPageGroupIsNobodyElses) {
  PagePool pool(3);
  auto reservation = pool.reserve(2);
  ASSERT_TRUE(reservation.has_value());
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_FALSE(pool.reserve(1).has_value());
  EXPECT_EQ(pool.check_free(1).error(), "1 more page groups needed, 0 of 3 free");
  EXPECT_EQ(pool.allocate(*reservation), 1);
  reservation.reset();  // one of its two was taken
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(PagePool, ASharedPageIsFreeOnlyAfterItsLastOwner) {
  PagePool pool(1);
  ASSERT_EQ(pool.allocate(), 0);
  pool.share(0);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 0);
}

TEST(PagePool, MoreThanWasPromisedAndSharingWhatIsFreeAreBrokenInvariants) {
  PagePool pool(4);
  auto reservation = pool.reserve(1);
  EXPECT_EQ(pool.allocate(*reservation), 0);
  EXPECT_DEATH(pool.allocate(*reservation), "reservation of 0");
  EXPECT_DEATH(pool.share(1), "page group 1");
  EXPECT_DEATH(pool.share(-1), "page group -1");
  PagePool other(4);
  auto foreign = other.reserve(1);
  EXPECT_DEATH(pool.allocate(*foreign), "reservation of 1");
}

}  // namespace
}  // namespace convoy
