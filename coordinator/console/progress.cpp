#include "coordinator/console/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "coordinator/console/output.h"

namespace convoy {
namespace {

constexpr int kBarWidth = 32;
constexpr auto kBarInterval = std::chrono::milliseconds(50);
constexpr auto kLineInterval = std::chrono::seconds(2);

double share(const LoadState& state) {
  return state.total_bytes == 0 ? 0.0
                                : std::min(1.0, static_cast<double>(state.loaded_bytes) /
                                                    static_cast<double>(state.total_bytes));
}

std::string bar(size_t rank, const LoadState& state) {
  const int full = static_cast<int>(share(state) * kBarWidth);
  return fmt::format("stage {:<2} [{:#<{}}{:.<{}}] {:3.0f}%  {:.1f} MB", rank, "", full, "",
                     kBarWidth - full, 100 * share(state),
                     static_cast<double>(state.total_bytes) / 1e6);
}

}  // namespace

ProgressDisplay::ProgressDisplay(Mode mode)
    : enabled_(mode == Mode::automatic), terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressDisplay::update(const std::vector<LoadState>& states) {
  states_ = states;
  if (!enabled_) return;
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval)))
    return;
  last_ = now;
  draw();
}

void ProgressDisplay::finish() {
  if (enabled_ && terminal_ && !states_.empty()) draw();
  enabled_ = false;
}

void ProgressDisplay::draw() {
  std::string text;
  if (terminal_) {
    if (drawn_lines_ > 0) text += fmt::format("\x1b[{}A", drawn_lines_);
    for (size_t rank = 0; rank < states_.size(); ++rank)
      text += "\r\x1b[K" + bar(rank, states_[rank]) + "\n";
    drawn_lines_ = static_cast<int>(states_.size());
  } else {
    text = "loading:";
    for (size_t rank = 0; rank < states_.size(); ++rank)
      text += fmt::format(" stage {} {:.0f}%", rank, 100 * share(states_[rank]));
    text += "\n";
  }
  write_stderr(text);
}

}  // namespace convoy
