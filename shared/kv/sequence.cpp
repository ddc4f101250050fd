#include "shared/kv/sequence.h"

#include <fmt/format.h>

#include "base/check.h"

namespace convoy {

Sequence::Sequence(PagePool& pool, int lane, int max_tokens)
    : pool_(pool), lane_(lane), max_tokens_(max_tokens) {}

Sequence::~Sequence() {
  for (const int32_t page : pages_) pool_.release(page);
}

Result<Sequence::Span> Sequence::extend(int count, std::vector<BlockTableDelta>& deltas) {
  CONVOY_CHECK_OP(count, >=,
                  1);  // the slots alternate, so an empty step would name one that nobody wrote
  if (count > max_tokens_ - length_) {
    return Error{fmt::format("{} tokens do not fit the context of {}", int64_t{length_} + count,
                             max_tokens_)};
  }
  const int end = length_ + count;
  const int needed = (end + kPageTokens - 1) / kPageTokens - pages();
  if (needed > pool_.capacity() - pool_.used()) {
    return Error{fmt::format("{} more page groups needed, {} of {} free", needed,
                             pool_.capacity() - pool_.used(), pool_.capacity())};
  }
  for (int i = 0; i < needed; ++i) {
    const int32_t page = *pool_.allocate();
    deltas.push_back({lane_, pages(), page});
    pages_.push_back(page);
  }
  Span span;
  span.first_position = length_;
  span.state_source = length_ == 0 ? -1 : 2 * lane_ + parity_;
  parity_ ^= 1;
  span.state_destination = 2 * lane_ + parity_;
  length_ = end;
  return span;
}

}  // namespace convoy
