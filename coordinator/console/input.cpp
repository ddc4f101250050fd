#include "coordinator/console/input.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/exit_code.h"

namespace convoy {

std::string read_stdin() {
  constexpr size_t kPieceBytes = size_t{1} << 16;
  std::string text;
  std::vector<char> piece(kPieceBytes);
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (got == 0) return text;
    if (got > 0) {
      text.append(piece.data(), static_cast<size_t>(got));
    } else if (errno == EAGAIN) {
      pollfd ready{STDIN_FILENO, POLLIN, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      throw StartError(fmt::format("cannot read stdin: {}", std::strerror(errno)));
    }
  }
}

}  // namespace convoy
