// One sequence's pages, length and recurrent-state slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/ops/step.h"
#include "shared/kv/page_pool.h"

namespace convoy {

/// Holds page groups of a pool until destroyed. Not movable: the pool and the step planner refer to
/// it.
class Sequence {
 public:
  /// Row `lane` of the block tables and state slots 2*lane and 2*lane+1 belong to this sequence.
  /// Pages come from `reserved` as long as it has any, then from what the pool has free.
  Sequence(PagePool& pool, int lane, int max_tokens, PageReservation reserved = {});
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence();

  /// Takes the pages that positions length()..length()+count-1 need (`count` at least 1, checked),
  /// appends what stages must learn to `deltas` and returns the lane's control values for these
  /// columns: the state slots alternate with every call. Errors: past max_tokens, no free page
  /// group. On an error nothing changed.
  struct Span {
    int32_t first_position;
    int32_t state_source;  // -1 at the start of a sequence
    int32_t state_destination;
  };
  /// `state_target`: a slot that takes the state after these columns instead; -1: its own.
  Result<Span> extend(int count, std::vector<BlockTableDelta>& deltas, int32_t state_target = -1);
  /// From now on the state at the end of every page goes into `slot`, where it replaces the last
  /// one, and is read from there.
  void leave_state_at_page_ends(int32_t slot) { page_end_slot_ = slot; }
  /// Tokens before the state that lies there; 0: none yet.
  int page_end_tokens() const { return page_end_tokens_; }
  /// Begins a fresh sequence (checked) behind a prefix that is computed already: shares its page
  /// groups, and the next columns read the state in `state_slot`. Appends what stages must learn.
  void adopt(std::span<const int32_t> pages, int32_t state_slot,
             std::vector<BlockTableDelta>& deltas);
  /// Page groups that extend(count) would take beyond the reservation. Error: past max_tokens.
  Result<int> unreserved_pages(int count) const;

  int length() const { return length_; }
  int lane() const { return lane_; }
  int max_tokens() const { return max_tokens_; }
  PagePool& pool() const { return pool_; }
  int pages() const { return static_cast<int>(pages_.size()); }
  /// Page groups of its blocks, in order.
  std::span<const int32_t> page_groups() const { return pages_; }
  /// The slot that holds the recurrent state after the last column; -1 at the start of a sequence.
  int32_t state_slot() const { return state_slot_; }

 private:
  int missing_pages(int count) const;

  PagePool& pool_;
  PageReservation reserved_;
  int lane_;
  int max_tokens_;
  int length_ = 0;
  int32_t state_slot_ = -1;
  int32_t page_end_slot_ = -1;
  int page_end_tokens_ = 0;
  std::vector<int32_t> pages_;
};

}  // namespace convoy
