#include "shared/control/parent_process.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

namespace convoy {

bool tie_to_parent(int parent_pid) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == parent_pid;
}

}  // namespace convoy
