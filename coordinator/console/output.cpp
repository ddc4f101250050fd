#include "coordinator/console/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "base/exit_code.h"
#include "coordinator/console/end_by_signal.h"

namespace convoy {

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

WriteResult write_stdout(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) return WriteResult::closed;
  if (error != 0) throw StartError(fmt::format("cannot write to stdout: {}", std::strerror(error)));
  return WriteResult::written;
}

// A pipe that poll() calls ready takes as much as is written at once, without blocking.
bool RunOutput::write(std::string_view text) {
  while (!ended_ && !text.empty()) {
    if (!wait_for_reader()) {
      ended_ = stalled_ = true;
    } else {
      const std::string_view part = text.substr(0, PIPE_BUF);
      ended_ = write_stdout(part) == WriteResult::closed;
      text.remove_prefix(part.size());
    }
  }
  return !ended_;
}

bool RunOutput::wait_for_reader() {
  constexpr int kPatienceMs = 1000;
  int patience_ms = -1;
  for (;;) {
    std::array<pollfd, 2> ready{{{STDOUT_FILENO, POLLOUT, 0}, {stop_fd_, POLLIN, 0}}};
    const int count = ::poll(ready.data(), patience_ms < 0 ? 2 : 1, patience_ms);
    if (count < 0 && errno != EINTR) return true;  // the write says what is wrong
    if (count == 0) return false;
    if (count > 0 && ready[0].revents != 0) return true;
    if (count > 0) patience_ms = kPatienceMs;
  }
}

void write_result(std::string_view text) {
  if (write_stdout(text) == WriteResult::closed) end_by_signal(SIGPIPE);
}

void write_stderr(std::string_view text) {
  write_all(STDERR_FILENO, text);
}

}  // namespace convoy
