#include "shared/control/log_to_stderr.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace convoy {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      break;
  }
  return spdlog::level::off;
}

class StderrSink : public LogSink {
 public:
  explicit StderrSink(const std::string& role)
      : logger_(role, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_pattern("%H:%M:%S.%e %l %n: %v");
    logger_.set_level(spdlog::level::debug);
    logger_.flush_on(spdlog::level::debug);
  }
  void write(LogLevel level, std::string_view line) override {
    logger_.log(to_spdlog(level), line);
  }

 private:
  spdlog::logger logger_;
};

}  // namespace

std::unique_ptr<LogSink> make_stderr_sink(const std::string& role) {
  return std::make_unique<StderrSink>(role);
}

}  // namespace convoy
