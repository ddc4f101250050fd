// Free, promised and used page groups.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace convoy {

class PagePool;

/// Page groups that are promised to one request and not taken yet. Move-only; what is left goes
/// back to the pool, which must outlive it. Moved-from: empty.
class PageReservation {
 public:
  PageReservation() = default;
  PageReservation(PageReservation&& other) noexcept;
  PageReservation& operator=(PageReservation&& other) noexcept;
  ~PageReservation();
  int count() const { return count_; }

 private:
  friend class PagePool;
  PageReservation(PagePool& pool, int count) : pool_(&pool), count_(count) {}

  PagePool* pool_ = nullptr;
  int count_ = 0;
};

/// Hands out page-group ids 0..capacity-1, the lowest free id first. A page may have several
/// owners; it is free again when the last one releases it. used + reserved + free = capacity after
/// every call (checked). One thread uses it.
class PagePool {
 public:
  explicit PagePool(int capacity);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Promises `count` page groups (0 or more, checked); nothing when fewer are free.
  std::optional<PageReservation> reserve(int count);
  /// A page group that nobody was promised; nothing when there is none.
  std::optional<int32_t> allocate();
  /// One of the page groups of `reservation`, which must be of this pool and hold one (checked).
  int32_t allocate(PageReservation& reservation);
  /// One more owner of `page`, which must be in use (checked).
  void share(int32_t page);
  /// One owner less. `page` must be in use (checked).
  void release(int32_t page);

  int capacity() const { return static_cast<int>(owners_.size()); }
  int used() const { return used_; }
  int reserved() const { return reserved_; }
  /// Neither in use nor promised.
  int free() const { return static_cast<int>(unused_.size()) - reserved_; }
  /// Owners of `page`; 0: not in use.
  int owners(int32_t page) const { return owners_.at(static_cast<size_t>(page)); }
  /// Error with both numbers when fewer than `count` page groups are free.
  Status check_free(int count) const;

 private:
  friend class PageReservation;
  int32_t take_lowest();
  void give_back(int count);
  void check_sum() const;

  std::vector<int32_t> unused_;  // a min-heap: free or promised
  std::vector<int> owners_;
  int used_ = 0;
  int reserved_ = 0;
};

}  // namespace convoy
