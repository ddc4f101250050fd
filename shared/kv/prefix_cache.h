// Which prefixes of earlier prompts the stages still hold, on their devices or in host memory: a
// tree of 64-token blocks by content.
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

/// What every stage has to do or to know, in order.
struct CacheChange {
  enum class Kind {
    keep,        ///< the cache begins to own page group `to`
    drop,        ///< and ends to
    copy_page,   ///< page group `from` to `to`
    copy_state,  ///< state slot `from` to `to`
  };
  Kind kind = Kind::keep;
  int32_t from = 0;
  int32_t to = 0;
};

/// Numbers of page groups and state slots: those on the devices come first, those in host memory
/// behind them.
struct PrefixCacheLayout {
  int first_slot = 0;  ///< of images on the devices
  int slots = 0;
  int first_host_slot = 0;
  int host_slots = 0;
  int first_host_page = 0;
  int host_pages = 0;
};

struct PrefixCacheStats {
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t hit_tokens = 0;
  uint64_t restored = 0;   ///< hits that came from host memory
  uint64_t evictions = 0;  ///< images that left the devices
  int images = 0;
  int pages = 0;
  int host_images = 0;
  int host_pages = 0;
};

/// A prefix counts only where a state image lies at its end; a block stays as long as there is an
/// image at its end or behind it. Room is made by the image that was used longest ago, and by the
/// blocks that led to no other: they go to host memory where there is any, in place of what was
/// used there longest ago. The prefix that was found last never makes room. The tree compares token
/// ids, never hashes. The cache is an owner of each of its page groups in `pool`, which must
/// outlive it. One thread uses it.
class PrefixCache {
 public:
  PrefixCache(PagePool& pool, const PrefixCacheLayout& layout);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  /// The longest prefix of `ids` that leaves at least one token to compute. One in host memory is
  /// brought back, if there is room for it.
  PrefixHit find(std::span<const int32_t> ids);
  /// The prompt of this hit, or of none, runs: statistics count it.
  void count(const PrefixHit& hit);
  /// Whether there is an image on the devices after the first `tokens` of `ids`.
  bool has_image(std::span<const int32_t> ids, int tokens) const;

  /// A slot for an image, from the one used longest ago where none is free. Nothing: every slot is
  /// given out. It is the caller's until insert() or give_back().
  std::optional<int32_t> take_slot();
  void give_back(int32_t slot);
  /// Until `count` page groups are free in the pool. Where not even everything else would make
  /// enough room it stays as it is.
  void make_room(int count);
  /// Takes the images of a prompt in, and the page groups that lead to them; `pages`: of the
  /// prompt's blocks. What the tree has already stays as it is.
  void insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
              std::span<const StateImage> images);

  /// What happened since the last call.
  std::vector<CacheChange> take_changes();
  const PrefixCacheStats& stats() const { return stats_; }
  int slots() const { return layout_.slots; }

 private:
  using Block = std::array<int32_t, kPageTokens>;
  struct Node {
    Node* parent = nullptr;
    int32_t page = -1;       // a page group, while a device image is here or behind
    int32_t host_page = -1;  // while a host image is here or behind
    int32_t image = -1;      // a slot
    int32_t host_image = -1;
    int images = 0;  // on the devices, here and behind
    int host_images = 0;
    uint64_t used = 0;
    std::map<Block, std::unique_ptr<Node>> children;
  };
  static Block block_of(std::span<const int32_t> ids, int index);
  void note(CacheChange::Kind kind, int32_t from, int32_t to) {
    changes_.push_back({kind, from, to});
  }
  Node*& at_slot(int32_t slot) {
    return by_slot_.at(static_cast<size_t>(slot - layout_.first_slot));
  }
  Node*& at_host_slot(int32_t slot) {
    return by_host_slot_.at(static_cast<size_t>(slot - layout_.first_host_slot));
  }
  Node* least_used(const std::vector<Node*>& nodes) const;
  void add_image(Node* node, int32_t slot);
  void evict(Node* node);
  bool move_out(Node* node);
  bool bring_back(Node* node);
  void drop_host_image(Node* node);
  void prune(Node* node);
  int missing_host_pages(const Node* node) const;
  int reclaimable_pages() const;

  PagePool& pool_;
  PrefixCacheLayout layout_;
  Node root_;
  std::vector<Node*> by_slot_;       // null: free or given out
  std::vector<Node*> by_host_slot_;  // null: free
  std::vector<int32_t> free_slots_, free_host_slots_, free_host_pages_;
  const Node* spared_ = nullptr;  // found last
  std::vector<CacheChange> changes_;
  uint64_t clock_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace convoy
