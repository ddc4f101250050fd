// Exit codes of every program, and the exceptions that carry them to main.
#pragma once

#include <stdexcept>
#include <string>

namespace convoy {

enum class ExitCode : int {
  done = 0,
  start_failed = 1,     ///< model, device, plan or output
  usage = 2,            ///< flags, environment
  engine_died = 3,      ///< a stage process was lost
  request_refused = 4,  ///< the prompt is too long, no pages
};

/// The name used in JSON errors: "start_failed", "usage", "engine_died", "request_refused".
const char* exit_code_name(ExitCode code);

/// A failure that ends the program: one line for the person and an exit code. Caught once, in main.
class FatalError : public std::runtime_error {
 public:
  FatalError(ExitCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Start-up failed (exit code 1).
class StartError : public FatalError {
 public:
  explicit StartError(const std::string& message) : FatalError(ExitCode::start_failed, message) {}
};

/// A flag or an environment variable has a bad value (exit code 2).
class UsageError : public FatalError {
 public:
  explicit UsageError(const std::string& message) : FatalError(ExitCode::usage, message) {}
};

}  // namespace convoy
