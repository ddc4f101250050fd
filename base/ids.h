// Strong types for the numbers that must not be mixed up.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>

namespace convoy {

/// A stage's place in the pipeline: 0 is the coordinator's own stage.
struct Rank {
  int value = 0;
  friend auto operator<=>(Rank, Rank) = default;
};
inline std::ostream& operator<<(std::ostream& out, Rank rank) {
  return out << rank.value;
}

/// Contiguous layers [begin, end) of the model, zero-based.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool contains(int layer) const { return layer >= begin && layer < end; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

}  // namespace convoy
