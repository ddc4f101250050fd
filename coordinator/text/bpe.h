// Byte-pair merges: one piece of text to token ids.
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace convoy {

/// `left` followed by `right` becomes `result`. A merge's rank is its place in the list; lower
/// ranks go first.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

/// What one thread needs to merge: work arrays and a direct-mapped cache of short pieces already
/// merged. Belongs to one BpeMerges; must not be used with another.
class BpeScratch {
 public:
  static constexpr size_t kMaxTextBytes = 24;  ///< longer pieces are not cached
  static constexpr size_t kMaxIds = 6;         ///< nor are pieces of more tokens
  static constexpr size_t kEntries = 8192;

  BpeScratch() : entries_(kEntries) {}
  /// Bytes held beyond the cache: they grow with the longest piece seen.
  size_t work_bytes() const;

 private:
  friend class BpeMerges;
  struct Entry {
    std::array<uint64_t, kMaxTextBytes / 8> text{};  // zero padded
    std::array<int32_t, kMaxIds> ids{};
    uint32_t text_bytes = 0;  // 0: empty entry
    uint32_t id_count = 0;
  };
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
    bool alive;
  };
  struct Candidate {
    uint64_t order;  // rank, then place: the leftmost of the lowest rank is merged first
    int32_t result;
  };

  std::vector<Entry> entries_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

/// Immutable after construction: usable from several threads, each with its own scratch.
class BpeMerges {
 public:
  /// `byte_ids[b]` is the token of the single byte b. When a pair occurs twice in `merges`, the
  /// later one counts.
  BpeMerges(std::span<const Merge> merges, const std::array<int32_t, 256>& byte_ids);

  /// Appends the tokens of `piece` (any bytes, below 2 GiB): the leftmost pair of lowest rank is
  /// merged until none is left. O(n log n) in the length of the piece.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct PairHash {
    using is_avalanching = void;
    size_t operator()(uint64_t key) const {
      key *= 0x9E3779B97F4A7C15;
      return key ^ (key >> 32);
    }
  };

  // Rank above result, so that comparing values compares ranks; kNoMerge when the pair does not
  // merge.
  uint64_t find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void offer(BpeScratch& scratch, int32_t place) const;

  boost::unordered_flat_map<uint64_t, uint64_t, PairHash> merges_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace convoy
