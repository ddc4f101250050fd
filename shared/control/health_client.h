// Asks a process how it is.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "health.pb.h"

namespace convoy {

inline constexpr int kHealthDeadlineMs = 500;

/// Connects to a health socket and reads the answer, all within `deadline_ms`. Errors: nobody
/// listens, no answer in time
/// ("not answering"), a malformed answer, another protocol version.
Result<proto::StageHealth> ask_health(const std::filesystem::path& socket_path,
                                      int deadline_ms = kHealthDeadlineMs);

}  // namespace convoy
