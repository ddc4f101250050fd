#include "coordinator/console/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/exit_code.h"

namespace convoy {

WriteResult write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EPIPE) {
      return WriteResult::closed;
    } else if (errno == EAGAIN) {
      pollfd fd{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&fd, 1, -1);
    } else if (errno != EINTR) {
      throw StartError(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
    }
  }
  return WriteResult::written;
}

}  // namespace convoy
