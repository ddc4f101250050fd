#include "shared/kv/page_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace convoy {

PagePool::PagePool(int capacity)
    : free_(static_cast<size_t>(capacity)), used_(static_cast<size_t>(capacity), false) {
  std::iota(free_.begin(), free_.end(), 0);
}

std::optional<int32_t> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  used_[static_cast<size_t>(page)] = true;
  return page;
}

void PagePool::release(int32_t page) {
  CONVOY_CHECK(page >= 0 && page < capacity() && used_[static_cast<size_t>(page)],
               "release of page group " + std::to_string(page));
  used_[static_cast<size_t>(page)] = false;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace convoy
