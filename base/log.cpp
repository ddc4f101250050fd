#include "base/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

namespace convoy {
namespace {

// The two process-wide settings of the program; set once by main, read by every thread.
std::atomic<LogSink*> g_sink{nullptr};
std::atomic<LogLevel> g_level{LogLevel::info};

constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kLevels{{
    {"debug", LogLevel::debug},
    {"info", LogLevel::info},
    {"warning", LogLevel::warning},
    {"error", LogLevel::error},
    {"off", LogLevel::off},
}};

}  // namespace

void set_log_sink(LogSink* sink) {
  g_sink.store(sink, std::memory_order_release);
}

void set_log_level(LogLevel level) {
  g_level.store(level, std::memory_order_relaxed);
}

LogLevel log_level() {
  return g_level.load(std::memory_order_relaxed);
}

bool parse_log_level(std::string_view text, LogLevel& level) {
  for (const auto& [name, value] : kLevels) {
    if (name == text) {
      level = value;
      return true;
    }
  }
  return false;
}

void log(LogLevel level, std::string_view line) {
  if (level < log_level()) return;
  if (LogSink* sink = g_sink.load(std::memory_order_acquire)) {
    sink->write(level, line);
    return;
  }
  std::string text(kLevels[static_cast<size_t>(level)].first);
  text.append(": ").append(line).append("\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace convoy
