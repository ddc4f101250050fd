#include "base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/exit_code.h"

namespace convoy {

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number, so this one; the wrong way round, so that it cannot be used.
    const int opened = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    // There is nowhere to say why, and going on would write answers into files.
    if (opened != fd) ::_exit(static_cast<int>(ExitCode::start_failed));
  }
}

}  // namespace convoy
