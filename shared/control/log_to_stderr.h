// The log sink of the programs: spdlog to stderr.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"

namespace convoy {

/// Lines "HH:MM:SS.mmm level role: text" on stderr. `role` is "coordinator", "stage 2", …
std::unique_ptr<LogSink> make_stderr_sink(const std::string& role);

}  // namespace convoy
