#include "coordinator/console/end_by_signal.h"

#include <unistd.h>

#include <csignal>

#include "base/exit_code.h"

namespace convoy {

void end_by_signal(int number) {
  ::signal(number, SIG_DFL);
  ::raise(number);
  // Only a signal that is blocked, or ignored by default, gets here.
  ::_exit(static_cast<int>(ExitCode::start_failed));
}

}  // namespace convoy
