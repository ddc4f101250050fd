#include "shared/kv/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convoy {
namespace {

// The first number is taken first.
std::vector<int32_t> numbers(int first, int count) {
  std::vector<int32_t> list;
  for (int i = count; i > 0; --i) list.push_back(first + i - 1);
  return list;
}

int32_t take_back(std::vector<int32_t>& list) {
  const int32_t last = list.back();
  list.pop_back();
  return last;
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, const PrefixCacheLayout& layout)
    : pool_(pool),
      layout_(layout),
      by_slot_(static_cast<size_t>(layout.slots), nullptr),
      by_host_slot_(static_cast<size_t>(layout.host_slots), nullptr),
      free_slots_(numbers(layout.first_slot, layout.slots)),
      free_host_slots_(numbers(layout.first_host_slot, layout.host_slots)),
      free_host_pages_(numbers(layout.first_host_page, layout.host_pages)) {}

PrefixCache::~PrefixCache() {
  spared_ = nullptr;
  free_host_slots_.clear();  // nothing moves out any more
  while (Node* const node = least_used(by_host_slot_)) drop_host_image(node);
  free_host_slots_.clear();
  while (Node* const node = least_used(by_slot_)) evict(node);
}

PrefixCache::Block PrefixCache::block_of(std::span<const int32_t> ids, int index) {
  Block block;
  const auto from = ids.begin() + ptrdiff_t{index} * kPageTokens;
  std::copy(from, from + kPageTokens, block.begin());
  return block;
}

PrefixHit PrefixCache::find(std::span<const int32_t> ids) {
  spared_ = nullptr;
  PrefixHit hit;
  std::vector<Node*> path;
  for (Node* node = &root_; static_cast<int>(ids.size()) >= hit.known_tokens + kPageTokens;) {
    const auto child = node->children.find(block_of(ids, static_cast<int>(path.size())));
    if (child == node->children.end()) break;
    path.push_back(node = child->second.get());
    hit.known_tokens += kPageTokens;
  }
  // At least one token is computed: its logits are what the prompt is for.
  size_t depth = std::min(path.size(), (ids.size() - 1) / size_t{kPageTokens});
  for (; depth > 0; --depth) {
    Node* const node = path[depth - 1];
    spared_ = node;
    if (node->image >= 0 || (node->host_image >= 0 && bring_back(node))) break;
    spared_ = nullptr;
  }
  if (depth == 0) return hit;
  Node* const best = path[depth - 1];
  best->used = ++clock_;
  hit.tokens = static_cast<int>(depth) * kPageTokens;
  hit.state_slot = best->image;
  for (size_t i = 0; i < depth; ++i) hit.pages.push_back(path[i]->page);
  return hit;
}

void PrefixCache::count(const PrefixHit& hit) {
  ++stats_.lookups;
  stats_.hits += hit.tokens > 0 ? 1 : 0;
  stats_.hit_tokens += static_cast<uint64_t>(hit.tokens);
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

PrefixCache::Node* PrefixCache::least_used(const std::vector<Node*>& nodes) const {
  Node* least = nullptr;
  for (Node* const node : nodes) {
    if (node != nullptr && node != spared_ && (least == nullptr || node->used < least->used))
      least = node;
  }
  return least;
}

// Every block that leads to it has its page group.
void PrefixCache::add_image(Node* node, int32_t slot) {
  node->image = slot;
  at_slot(slot) = node;
  ++stats_.images;
  for (Node* n = node; n != &root_; n = n->parent) ++n->images;
}

// An image leaves the devices, with the page groups that led to no other.
void PrefixCache::evict(Node* node) {
  if (node->host_image < 0) (void)move_out(node);
  at_slot(node->image) = nullptr;
  free_slots_.push_back(std::exchange(node->image, -1));
  --stats_.images;
  for (Node* n = node; n != &root_; n = n->parent) {
    if (--n->images > 0) continue;
    pool_.release(n->page);
    note(CacheChange::Kind::drop, 0, std::exchange(n->page, -1));
    --stats_.pages;
  }
  prune(node);
}

int PrefixCache::missing_host_pages(const Node* node) const {
  int missing = 0;
  for (const Node* n = node; n != &root_; n = n->parent) missing += n->host_page < 0 ? 1 : 0;
  return missing;
}

// Into host memory. False: not even everything else there would make enough room.
bool PrefixCache::move_out(Node* node) {
  while (free_host_slots_.empty() ||
         static_cast<int>(free_host_pages_.size()) < missing_host_pages(node)) {
    Node* const least = least_used(by_host_slot_);
    if (least == nullptr) return false;
    drop_host_image(least);
  }
  for (Node* n = node; n != &root_; n = n->parent) {
    ++n->host_images;
    if (n->host_page >= 0) continue;
    n->host_page = take_back(free_host_pages_);
    ++stats_.host_pages;
    note(CacheChange::Kind::copy_page, n->page, n->host_page);
  }
  node->host_image = take_back(free_host_slots_);
  at_host_slot(node->host_image) = node;
  ++stats_.host_images;
  note(CacheChange::Kind::copy_state, node->image, node->host_image);
  return true;
}

// From host memory, where it stays as well. False: the devices have no room.
bool PrefixCache::bring_back(Node* node) {
  const auto slot = take_slot();
  if (!slot) return false;
  std::vector<Node*> missing;
  for (Node* n = node; n != &root_; n = n->parent) {
    if (n->page < 0) missing.push_back(n);
  }
  make_room(static_cast<int>(missing.size()));
  // What made room may have led to this one as well.
  missing.clear();
  for (Node* n = node; n != &root_; n = n->parent) {
    if (n->page < 0) missing.push_back(n);
  }
  if (pool_.free() < static_cast<int>(missing.size())) {
    give_back(*slot);
    return false;
  }
  for (Node* const n : missing) {
    n->page = pool_.allocate().value();
    ++stats_.pages;
    note(CacheChange::Kind::keep, 0, n->page);
    note(CacheChange::Kind::copy_page, n->host_page, n->page);
  }
  note(CacheChange::Kind::copy_state, node->host_image, *slot);
  add_image(node, *slot);
  ++stats_.restored;
  return true;
}

void PrefixCache::drop_host_image(Node* node) {
  at_host_slot(node->host_image) = nullptr;
  free_host_slots_.push_back(std::exchange(node->host_image, -1));
  --stats_.host_images;
  for (Node* n = node; n != &root_; n = n->parent) {
    if (--n->host_images > 0) continue;
    free_host_pages_.push_back(std::exchange(n->host_page, -1));
    --stats_.host_pages;
  }
  prune(node);
}

// Blocks that lead to no image anywhere.
void PrefixCache::prune(Node* node) {
  while (node != &root_ && node->images == 0 && node->host_images == 0) {
    Node* const parent = node->parent;
    std::erase_if(parent->children, [&](const auto& child) { return child.second.get() == node; });
    node = parent;
  }
}

std::optional<int32_t> PrefixCache::take_slot() {
  if (free_slots_.empty()) {
    Node* const least = least_used(by_slot_);
    if (least == nullptr) return std::nullopt;
    evict(least);
    ++stats_.evictions;
  }
  return take_back(free_slots_);
}

void PrefixCache::give_back(int32_t slot) {
  CONVOY_CHECK(at_slot(slot) == nullptr, "a slot that holds an image");
  free_slots_.push_back(slot);
}

// Page groups that nobody but the cache owns and the prefix found last does not need.
int PrefixCache::reclaimable_pages() const {
  const auto is_own = [&](const Node* node) {
    return node->page >= 0 && pool_.owners(node->page) == 1;
  };
  int count = 0;
  std::vector<const Node*> nodes{&root_};
  while (!nodes.empty()) {
    const Node* const node = nodes.back();
    nodes.pop_back();
    count += is_own(node) ? 1 : 0;
    for (const auto& [block, child] : node->children) nodes.push_back(child.get());
  }
  if (spared_ == nullptr || spared_->image < 0) return count;
  for (const Node* n = spared_; n != &root_; n = n->parent) count -= is_own(n) ? 1 : 0;
  return count;
}

void PrefixCache::make_room(int count) {
  if (pool_.free() >= count || pool_.free() + reclaimable_pages() < count) return;
  while (pool_.free() < count) {
    Node* const least = least_used(by_slot_);
    if (least == nullptr) return;
    evict(least);
    ++stats_.evictions;
  }
}

void PrefixCache::insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
                         std::span<const StateImage> images) {
  for (const StateImage& image : images) {
    CONVOY_CHECK(image.tokens > 0 && image.tokens % kPageTokens == 0 &&
                     image.tokens <= static_cast<int>(ids.size()),
                 "an image lies at the end of a block of the prompt");
    if (has_image(ids, image.tokens)) {
      give_back(image.slot);
      continue;
    }
    Node* node = &root_;
    for (int i = 0; i < image.tokens / kPageTokens; ++i) {
      auto& child = node->children[block_of(ids, i)];
      if (child == nullptr) {
        child = std::make_unique<Node>();
        child->parent = node;
      }
      node = child.get();
      if (node->page >= 0) continue;
      node->page = pages[static_cast<size_t>(i)];
      pool_.share(node->page);
      ++stats_.pages;
      note(CacheChange::Kind::keep, 0, node->page);
    }
    node->used = ++clock_;
    add_image(node, image.slot);
  }
}

std::vector<CacheChange> PrefixCache::take_changes() {
  return std::exchange(changes_, {});
}

}  // namespace convoy
