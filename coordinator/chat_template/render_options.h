// Limits and clock of one rendering.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>

namespace convoy {

/// A rendering that needs more ends with an error that names the limit. The defaults are a hundred
/// times what a real template needs for a conversation of 1,000 messages and 1 MB of text, and end
/// a hostile one within a few seconds.
struct RenderLimits {
  uint64_t max_steps =
      20'000'000;  ///< one per expression, statement and loop pass, and per 64 bytes touched
  uint64_t max_live_bytes = 256ull
                            << 20;  ///< memory of values made by the template, at any one time
  uint64_t max_output_bytes = 64ull << 20;  ///< the rendered text
  int max_depth = 400;  ///< nested statements, expressions and macro calls together
};

struct RenderOptions {
  RenderLimits limits;
  /// What strftime_now sees; the system's clock if absent. Shown in the local time zone.
  std::optional<std::time_t> now;
};

}  // namespace convoy
