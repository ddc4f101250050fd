// The log interface of every box. Programs install a sink at start; without one, lines go to
// stderr.
#pragma once

#include <string>
#include <string_view>

namespace convoy {

enum class LogLevel { debug, info, warning, error, off };

/// Where log lines go. Called from any thread, one call a line, without a newline at the end.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view line) = 0;
};

/// Installs `sink`, which must outlive every later call of log(); nullptr restores stderr.
/// Called by main before other threads exist.
void set_log_sink(LogSink* sink);

/// Lines below `level` are dropped. Default: info.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Parses "debug", "info", "warning", "error" or "off"; false leaves `level` alone.
bool parse_log_level(std::string_view text, LogLevel& level);

void log(LogLevel level, std::string_view line);

}  // namespace convoy
