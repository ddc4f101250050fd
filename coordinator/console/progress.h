// Load progress on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

struct LoadState {
  uint64_t loaded_bytes = 0;
  uint64_t total_bytes = 0;  ///< 0: not known yet
};

/// A bar per stage that redraws in place when stderr is a terminal, else a plain line now and then.
/// Main thread.
class ProgressDisplay {
 public:
  enum class Mode { automatic, silent };
  explicit ProgressDisplay(Mode mode);
  /// One state per stage, by rank. Cheap to call often: draws at most every 50 ms (bars) or 2 s
  /// (lines).
  void update(const std::vector<LoadState>& states);
  /// Draws the last state; later output begins on a fresh line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  bool enabled_;
  bool terminal_;
  int drawn_lines_ = 0;
  Clock::time_point last_ = Clock::now();
  std::vector<LoadState> states_;
};

}  // namespace convoy
