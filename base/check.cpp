#include "base/check.h"

#include <cstdlib>

#include "base/log.h"

namespace convoy {

void check_failed(const char* file, int line, std::string_view message) {
  std::string_view path(file);
  if (const auto last = path.rfind('/'); last != std::string_view::npos && last > 0) {
    if (const auto before = path.rfind('/', last - 1); before != std::string_view::npos) {
      path.remove_prefix(before + 1);
    }
  }
  std::string text = "check failed at ";
  text.append(path).append(":").append(std::to_string(line)).append(": ").append(message);
  log(LogLevel::error, text);
  std::abort();
}

}  // namespace convoy
