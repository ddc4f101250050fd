#include "coordinator/text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace convoy {
namespace {

using Ids = std::vector<int32_t>;

// The definition: merge the leftmost pair of lowest rank until none is left.
Ids merge_by_definition(const std::vector<Merge>& merges, std::string_view piece) {
  Ids ids;
  for (const char byte : piece) ids.push_back(static_cast<uint8_t>(byte));
  for (;;) {
    size_t best_rank = merges.size();
    size_t best_place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_place = i;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_place] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_place) + 1);
  }
}

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> ids{};
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return ids;
}

// Random merges over few letters, so that they overlap: tokens of equal text have one id, as in a
// vocabulary.
std::vector<Merge> random_merges(std::mt19937& random, size_t count) {
  std::map<std::string, int32_t> ids = {{"a", 'a'}, {"b", 'b'}, {"c", 'c'}};
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  std::vector<Merge> merges;
  while (merges.size() < count) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 12 || seen[{ids[left], ids[right]}]) continue;
    seen[{ids[left], ids[right]}] = true;
    const auto [entry, fresh] =
        ids.try_emplace(left + right, 256 + static_cast<int32_t>(tokens.size()));
    if (fresh) tokens.push_back(left + right);
    merges.push_back({ids[left], ids[right], entry->second});
  }
  return merges;
}

TEST(BpeMerges, EveryLengthAgreesWithTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto merges = random_merges(random, 25);
    const BpeMerges bpe(merges, identity());
    BpeScratch scratch;
    // Cached, short and long pieces; the second round of each finds the first one's cache.
    for (const size_t length : {0u, 1u, 2u, 5u, 23u, 24u, 25u, 47u, 48u, 49u, 60u, 150u}) {
      std::string piece;
      while (piece.size() < length) piece += static_cast<char>('a' + random() % 3);
      for (int repeat = 0; repeat < 2; ++repeat) {
        Ids ids = {-7};
        bpe.encode(piece, scratch, ids);
        Ids expected = merge_by_definition(merges, piece);
        expected.insert(expected.begin(), -7);
        ASSERT_EQ(ids, expected) << piece;
      }
    }
  }
}

TEST(BpeMerges, PiecesThatShareACacheEntryAreNotConfused) {
  std::mt19937 random(2);
  const auto merges = random_merges(random, 20);
  const BpeMerges bpe(merges, identity());
  BpeScratch scratch;
  // Far more different pieces than the cache has entries.
  for (int round = 0; round < 60000; ++round) {
    std::string piece;
    for (size_t length = random() % 14 + 1; piece.size() < length;)
      piece += static_cast<char>('a' + random() % 3);
    if (random() % 8 == 0) piece += '\0';
    Ids ids;
    bpe.encode(piece, scratch, ids);
    ASSERT_EQ(ids, merge_by_definition(merges, piece)) << piece;
  }
}

}  // namespace
}  // namespace convoy
