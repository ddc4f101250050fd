#include "coordinator/text/bpe.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace convoy {
namespace {

constexpr uint64_t kNoMerge = ~uint64_t{0};
// Up to here scanning all pairs for each merge is faster than a heap.
constexpr size_t kShortPieceBytes = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

int32_t result_of(uint64_t merge) {
  return static_cast<int32_t>(merge & 0xFFFFFFFF);
}

}  // namespace

size_t BpeScratch::work_bytes() const {
  return symbols_.capacity() * sizeof(Symbol) + heap_.capacity() * sizeof(Candidate);
}

BpeMerges::BpeMerges(std::span<const Merge> merges, const std::array<int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids) {
  merges_.reserve(merges.size());
  uint64_t rank = 0;
  for (const Merge& merge : merges) {
    merges_[pair_key(merge.left, merge.right)] = rank << 32 | static_cast<uint32_t>(merge.result);
    ++rank;
  }
}

uint64_t BpeMerges::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? kNoMerge : found->second;
}

void BpeMerges::encode(std::string_view piece, BpeScratch& scratch,
                       std::vector<int32_t>& out) const {
  if (piece.size() > BpeScratch::kMaxTextBytes) {
    return piece.size() <= kShortPieceBytes ? encode_short(piece, out)
                                            : encode_long(piece, scratch, out);
  }
  if (piece.empty()) return;
  std::array<uint64_t, BpeScratch::kMaxTextBytes / 8> text{};
  std::memcpy(text.data(), piece.data(), piece.size());
  uint64_t hash = piece.size();
  for (const uint64_t word : text) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  }
  BpeScratch::Entry& entry = scratch.entries_[hash % BpeScratch::kEntries];
  if (entry.text_bytes == piece.size() && entry.text == text) {
    out.insert(out.end(), entry.ids.begin(), entry.ids.begin() + entry.id_count);
    return;
  }
  const size_t before = out.size();
  encode_short(piece, out);
  const size_t count = out.size() - before;
  if (count > BpeScratch::kMaxIds) return;
  entry.text = text;
  entry.text_bytes = static_cast<uint32_t>(piece.size());
  entry.id_count = static_cast<uint32_t>(count);
  std::copy(out.begin() + static_cast<ptrdiff_t>(before), out.end(), entry.ids.begin());
}

void BpeMerges::encode_short(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortPieceBytes> ids;
  std::array<uint64_t, kShortPieceBytes> merge;  // of ids[i] with ids[i + 1]
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merge[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merge[i] < merge[best]) best = i;
    }
    if (merge[best] == kNoMerge) break;
    ids[best] = result_of(merge[best]);
    --count;
    for (size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) merge[i] = merge[i + 1];
    if (best + 1 < count) merge[best] = find(ids[best], ids[best + 1]);
    if (best > 0) merge[best - 1] = find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
}

// Puts the pair that begins at `place` into the heap if it merges.
void BpeMerges::offer(BpeScratch& scratch, int32_t place) const {
  const auto& left = scratch.symbols_[static_cast<size_t>(place)];
  if (left.next < 0) return;
  const uint64_t merge = find(left.id, scratch.symbols_[static_cast<size_t>(left.next)].id);
  if (merge == kNoMerge) return;
  const uint64_t order = (merge & ~uint64_t{0xFFFFFFFF}) | static_cast<uint32_t>(place);
  scratch.heap_.push_back({order, result_of(merge)});
}

void BpeMerges::encode_long(std::string_view piece, BpeScratch& scratch,
                            std::vector<int32_t>& out) const {
  CONVOY_CHECK_OP(piece.size(), <, size_t{1} << 31);
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.order > b.order;
  };
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  const auto count = static_cast<int32_t>(piece.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1,
                       i + 1 < count ? i + 1 : -1, true});
  }
  for (int32_t i = 0; i < count; ++i) offer(scratch, i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto place = static_cast<int32_t>(top.order & 0xFFFFFFFF);
    auto& left = symbols[static_cast<size_t>(place)];
    if (!left.alive || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    // The pair may have changed since it was put into the heap; its result spells the text, so it
    // tells.
    const uint64_t merge = find(left.id, right.id);
    if (merge == kNoMerge || result_of(merge) != top.result) continue;
    left.id = top.result;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = place;
    for (const int32_t changed : {place, left.previous}) {
      if (changed < 0) continue;
      const size_t before = heap.size();
      offer(scratch, changed);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    out.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace convoy
