// Free and used page groups.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace convoy {

/// Hands out page-group ids 0..capacity-1, the lowest free id first. used + free = capacity always.
class PagePool {
 public:
  explicit PagePool(int capacity);
  /// Nothing when every page group is in use.
  std::optional<int32_t> allocate();
  /// `page` must be in use (checked).
  void release(int32_t page);
  int capacity() const { return static_cast<int>(used_.size()); }
  int used() const { return capacity() - static_cast<int>(free_.size()); }

 private:
  std::vector<int32_t> free_;  // a min-heap
  std::vector<bool> used_;
};

}  // namespace convoy
