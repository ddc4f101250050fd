#include "shared/kv/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convoy {

Sequence::Sequence(PagePool& pool, int lane, int max_tokens, PageReservation reserved)
    : pool_(pool), reserved_(std::move(reserved)), lane_(lane), max_tokens_(max_tokens) {}

Sequence::~Sequence() {
  for (const int32_t page : pages_) pool_.release(page);
}

int Sequence::missing_pages(int count) const {
  return (length_ + count + kPageTokens - 1) / kPageTokens - pages();
}

Result<int> Sequence::unreserved_pages(int count) const {
  // The state slots alternate, so an empty step would name one that nobody wrote.
  CONVOY_CHECK_OP(count, >=, 1);
  if (count > max_tokens_ - length_) {
    return Error{fmt::format("{} tokens do not fit the context of {}", int64_t{length_} + count,
                             max_tokens_)};
  }
  return std::max(0, missing_pages(count) - reserved_.count());
}

void Sequence::adopt(std::span<const int32_t> pages, int32_t state_slot,
                     std::vector<BlockTableDelta>& deltas) {
  CONVOY_CHECK_OP(length_, ==, 0);
  for (const int32_t page : pages) {
    pool_.share(page);
    deltas.push_back({lane_, this->pages(), page});
    pages_.push_back(page);
  }
  length_ = this->pages() * kPageTokens;
  state_slot_ = state_slot;
}

Result<Sequence::Span> Sequence::extend(int count, std::vector<BlockTableDelta>& deltas,
                                        int32_t state_target) {
  const auto unreserved = unreserved_pages(count);
  if (!unreserved) return Error{unreserved.error()};
  if (Status status = pool_.check_free(unreserved.value()); !status) return Error{status.error()};
  for (int missing = missing_pages(count); missing > 0; --missing) {
    const int32_t page = reserved_.count() > 0 ? pool_.allocate(reserved_) : *pool_.allocate();
    deltas.push_back({lane_, pages(), page});
    pages_.push_back(page);
  }
  if (state_target < 0 && page_end_slot_ >= 0 && (length_ + count) % kPageTokens == 0) {
    state_target = page_end_slot_;
    page_end_tokens_ = length_ + count;
  }
  Span span;
  span.first_position = length_;
  span.state_source = state_slot_;
  const int32_t own = 2 * lane_ + (state_slot_ == 2 * lane_ + 1 ? 0 : 1);
  span.state_destination = state_target >= 0 ? state_target : own;
  state_slot_ = span.state_destination;
  length_ += count;
  return span;
}

}  // namespace convoy
