// Which prefixes of earlier prompts the stages still hold: a tree of 64-token blocks by content.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops/step.h"
#include "shared/kv/page_pool.h"

namespace convoy {

/// A prefix of a prompt that need not be computed again.
struct PrefixHit {
  int tokens = 0;              ///< a multiple of kPageTokens; 0: none
  std::vector<int32_t> pages;  ///< page groups of its blocks, in order
  int32_t state_slot = -1;     ///< recurrent state after it
  int known_tokens = 0;        ///< how far the prompt's blocks are known, with or without a state
};

/// The recurrent state after the first `tokens` tokens of a prompt, in a state slot.
struct StateImage {
  int tokens = 0;
  int32_t slot = -1;
};

/// A page group that the cache has begun to own, or owns no longer.
struct PageChange {
  int32_t page = 0;
  bool kept = false;
};

struct PrefixCacheStats {
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t hit_tokens = 0;
  uint64_t evictions = 0;  ///< images that made room
  int images = 0;
  int pages = 0;
};

/// A prefix counts only where a state image lies at its end; a block stays as long as there is an
/// image at its end or behind it. Room is made by dropping the image that was used longest ago, and
/// with it the blocks that led to no other. The tree compares token ids, never hashes. One owner of
/// each of its page groups in `pool`, which must outlive it. One thread uses it.
class PrefixCache {
 public:
  /// State slots first_slot..first_slot+slots-1 are its own.
  PrefixCache(PagePool& pool, int first_slot, int slots);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  /// The longest prefix of `ids` that leaves at least one token to compute.
  PrefixHit find(std::span<const int32_t> ids);
  /// Whether there is an image after the first `tokens` of `ids`.
  bool has_image(std::span<const int32_t> ids, int tokens) const;

  /// A slot for an image, taken from the least recently used one where none is free, but not from
  /// the one in `spared`. Nothing: every slot is given out. It is the caller's until insert() or
  /// give_back().
  std::optional<int32_t> take_slot(int32_t spared);
  void give_back(int32_t slot);
  /// Drops images, the least recently used first and not the one in `spared`, until `count` page
  /// groups are free in the pool or nothing is left to drop.
  void make_room(int count, int32_t spared);
  /// Takes the images of a prompt in, and the page groups that lead to them; `pages`: of the
  /// prompt's blocks. What the tree has already stays as it is.
  void insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
              std::span<const StateImage> images);

  /// What became of page groups since the last call, in order: every stage has to be told.
  std::vector<PageChange> take_changes();
  PrefixCacheStats stats() const;
  int slots() const { return static_cast<int>(images_.size()); }

 private:
  using Block = std::array<int32_t, kPageTokens>;
  struct Node {
    Node* parent = nullptr;
    int32_t page = -1;   // none: the root
    int32_t image = -1;  // a slot
    uint64_t used = 0;
    std::map<Block, std::unique_ptr<Node>> children;
  };
  static Block block_of(std::span<const int32_t> ids, int index);
  Node*& image_at(int32_t slot) { return images_.at(static_cast<size_t>(slot - first_slot_)); }
  Node* least_used(int32_t spared) const;
  void drop(Node* node);

  PagePool& pool_;
  int first_slot_;
  Node root_;
  std::vector<Node*> images_;  // by slot; null: free or given out
  std::vector<int32_t> free_slots_;
  std::vector<PageChange> changes_;
  uint64_t clock_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace convoy
