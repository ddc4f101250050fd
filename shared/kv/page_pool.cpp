#include "shared/kv/page_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace convoy {

PageReservation::PageReservation(PageReservation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), count_(std::exchange(other.count_, 0)) {}

PageReservation& PageReservation::operator=(PageReservation&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(count_, other.count_);
  return *this;
}

PageReservation::~PageReservation() {
  if (pool_ != nullptr) pool_->give_back(count_);
}

PagePool::PagePool(int capacity)
    : unused_(static_cast<size_t>(capacity)), owners_(static_cast<size_t>(capacity), 0) {
  std::iota(unused_.begin(), unused_.end(), 0);
}

std::optional<PageReservation> PagePool::reserve(int count) {
  CONVOY_CHECK_OP(count, >=, 0);
  if (count > free()) return std::nullopt;
  reserved_ += count;
  check_sum();
  return PageReservation(*this, count);
}

std::optional<int32_t> PagePool::allocate() {
  if (free() == 0) return std::nullopt;
  const int32_t page = take_lowest();
  check_sum();
  return page;
}

int32_t PagePool::allocate(PageReservation& reservation) {
  CONVOY_CHECK(reservation.pool_ == this && reservation.count_ > 0,
               fmt::format("allocation from a reservation of {}", reservation.count_));
  --reservation.count_;
  --reserved_;
  const int32_t page = take_lowest();
  check_sum();
  return page;
}

void PagePool::share(int32_t page) {
  CONVOY_CHECK(page >= 0 && page < capacity() && owners(page) > 0,
               fmt::format("share of page group {}", page));
  ++owners_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
  CONVOY_CHECK(page >= 0 && page < capacity() && owners(page) > 0,
               fmt::format("release of page group {}", page));
  if (--owners_[static_cast<size_t>(page)] > 0) return;
  --used_;
  unused_.push_back(page);
  std::push_heap(unused_.begin(), unused_.end(), std::greater<>());
  check_sum();
}

Status PagePool::check_free(int count) const {
  if (count <= free()) return {};
  return Error{fmt::format("{} more page groups needed, {} of {} free", count, free(), capacity())};
}

int32_t PagePool::take_lowest() {
  std::pop_heap(unused_.begin(), unused_.end(), std::greater<>());
  const int32_t page = unused_.back();
  unused_.pop_back();
  owners_[static_cast<size_t>(page)] = 1;
  ++used_;
  return page;
}

void PagePool::give_back(int count) {
  reserved_ -= count;
  check_sum();
}

void PagePool::check_sum() const {
  CONVOY_CHECK(
      used_ + reserved_ + free() == capacity() && used_ >= 0 && reserved_ >= 0 && free() >= 0,
      fmt::format("{} used, {} reserved, {} free of {} page groups", used_, reserved_, free(),
                  capacity()));
}

}  // namespace convoy
