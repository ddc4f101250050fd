// A child that runs one end of a link (link_end.h), as a test holds it.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"
#include "shared/ipc/shared_region.h"
#include "tests/gpu/link_end.h"

namespace convoy::test {

class LinkProcess {
 public:
  /// Starts this test program again, with the region as a descriptor.
  LinkProcess(const LinkEndTask& task, const SharedRegion& region);
  /// Kills the child if it still runs.
  ~LinkProcess();
  LinkProcess(const LinkProcess&) = delete;
  LinkProcess& operator=(const LinkProcess&) = delete;

  /// The next line of its output; empty after `timeout_ms` or at its end.
  std::string line(int timeout_ms);
  /// Ends its standard input.
  void tell_to_stop() { input_.reset(); }
  void kill();
  /// Waits; the exit code, 128 + signal, or -1 after `timeout_ms`.
  int wait(int timeout_ms);

 private:
  pid_t pid_ = -1;
  int exit_code_ = -1;
  UniqueFd input_, output_;
  std::string unread_;
};

}  // namespace convoy::test
