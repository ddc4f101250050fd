#include "coordinator/console/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/exit_code.h"
#include "coordinator/console/end_by_signal.h"

namespace convoy {
namespace {

// 0, or the errno that ended it.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

WriteResult write_stdout(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) return WriteResult::closed;
  if (error != 0) throw StartError(fmt::format("cannot write to stdout: {}", std::strerror(error)));
  return WriteResult::written;
}

void write_result(std::string_view text) {
  if (write_stdout(text) == WriteResult::closed) end_by_signal(SIGPIPE);
}

void write_stderr(std::string_view text) {
  write_all(STDERR_FILENO, text);
}

}  // namespace convoy
