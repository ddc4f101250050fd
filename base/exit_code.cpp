#include "base/exit_code.h"

namespace convoy {

const char* exit_code_name(ExitCode code) {
  switch (code) {
    case ExitCode::done:
      return "done";
    case ExitCode::start_failed:
      return "start_failed";
    case ExitCode::usage:
      return "usage";
    case ExitCode::engine_died:
      return "engine_died";
    case ExitCode::request_refused:
      return "request_refused";
  }
  return "unknown";
}

}  // namespace convoy
