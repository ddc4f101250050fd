#include "shared/kv/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convoy {

PrefixCache::PrefixCache(PagePool& pool, int first_slot, int slots)
    : pool_(pool), first_slot_(first_slot), images_(static_cast<size_t>(slots), nullptr) {
  for (int i = slots; i > 0; --i) free_slots_.push_back(first_slot + i - 1);
}

PrefixCache::~PrefixCache() {
  while (Node* const node = least_used(-1)) drop(node);
}

PrefixCache::Block PrefixCache::block_of(std::span<const int32_t> ids, int index) {
  Block block;
  const auto from = ids.begin() + ptrdiff_t{index} * kPageTokens;
  std::copy(from, from + kPageTokens, block.begin());
  return block;
}

PrefixHit PrefixCache::find(std::span<const int32_t> ids) {
  PrefixHit hit;
  ++stats_.lookups;
  Node* node = &root_;
  Node* best = nullptr;
  std::vector<int32_t> pages;
  const auto blocks = static_cast<int>(ids.size()) / kPageTokens;
  for (int i = 0; i < blocks; ++i) {
    const auto child = node->children.find(block_of(ids, i));
    if (child == node->children.end()) break;
    node = child->second.get();
    pages.push_back(node->page);
    hit.known_tokens = (i + 1) * kPageTokens;
    if (node->image >= 0 && hit.known_tokens < static_cast<int>(ids.size())) {
      best = node;
      hit.tokens = hit.known_tokens;
    }
  }
  if (best == nullptr) return hit;
  best->used = ++clock_;
  hit.state_slot = best->image;
  pages.resize(static_cast<size_t>(hit.tokens / kPageTokens));
  hit.pages = std::move(pages);
  ++stats_.hits;
  stats_.hit_tokens += static_cast<uint64_t>(hit.tokens);
  return hit;
}

bool PrefixCache::has_image(std::span<const int32_t> ids, int tokens) const {
  const Node* node = &root_;
  for (int i = 0; i < tokens / kPageTokens; ++i) {
    const auto child = node->children.find(block_of(ids, i));
    if (child == node->children.end()) return false;
    node = child->second.get();
  }
  return node->image >= 0;
}

PrefixCache::Node* PrefixCache::least_used(int32_t spared) const {
  Node* least = nullptr;
  for (Node* const node : images_) {
    if (node != nullptr && node->image != spared && (least == nullptr || node->used < least->used))
      least = node;
  }
  return least;
}

// An image, and the blocks that led to nothing else.
void PrefixCache::drop(Node* node) {
  image_at(node->image) = nullptr;
  free_slots_.push_back(std::exchange(node->image, -1));
  --stats_.images;
  while (node != &root_ && node->image < 0 && node->children.empty()) {
    pool_.release(node->page);
    changes_.push_back({node->page, false});
    --stats_.pages;
    Node* const parent = node->parent;
    std::erase_if(parent->children, [&](const auto& child) { return child.second.get() == node; });
    node = parent;
  }
}

std::optional<int32_t> PrefixCache::take_slot(int32_t spared) {
  if (free_slots_.empty()) {
    Node* const least = least_used(spared);
    if (least == nullptr) return std::nullopt;
    drop(least);
    ++stats_.evictions;
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void PrefixCache::give_back(int32_t slot) {
  CONVOY_CHECK(image_at(slot) == nullptr, "a slot that holds an image");
  free_slots_.push_back(slot);
}

void PrefixCache::make_room(int count, int32_t spared) {
  while (pool_.free() < count) {
    Node* const least = least_used(spared);
    if (least == nullptr) return;
    drop(least);
    ++stats_.evictions;
  }
}

void PrefixCache::insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
                         std::span<const StateImage> images) {
  for (const StateImage& image : images) {
    CONVOY_CHECK(image.tokens > 0 && image.tokens % kPageTokens == 0 &&
                     image.tokens <= static_cast<int>(ids.size()),
                 "an image lies at the end of a block of the prompt");
    Node* node = &root_;
    for (int i = 0; i < image.tokens / kPageTokens; ++i) {
      auto& child = node->children[block_of(ids, i)];
      if (child == nullptr) {
        child = std::make_unique<Node>();
        child->parent = node;
        child->page = pages[static_cast<size_t>(i)];
        pool_.share(child->page);
        changes_.push_back({child->page, true});
        ++stats_.pages;
      }
      node = child.get();
    }
    node->used = ++clock_;
    if (node->image >= 0) {
      give_back(image.slot);
      continue;
    }
    node->image = image.slot;
    image_at(image.slot) = node;
    ++stats_.images;
  }
}

std::vector<PageChange> PrefixCache::take_changes() {
  return std::exchange(changes_, {});
}

PrefixCacheStats PrefixCache::stats() const {
  return stats_;
}

}  // namespace convoy
