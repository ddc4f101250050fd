// Device calls that have no place while streams wait for other stages.
//
// On a CUDA device, releasing memory and unregistering host memory return only when no stream of
// the process waits any more (measured). The calling thread then hangs in the driver, where no
// abort reaches it. So the thread that drives a stage makes no such call while links are open.
// Nor does it take anything: everything was planned and taken before, and what is taken has to be
// given back.
#pragma once

namespace convoy {

/// While one of these lives, such a call of the same thread ends the process (a check): allocating,
/// releasing, registering, mapping another process's memory, capturing. Nests; other threads are
/// not concerned. Constructed and destroyed on the same thread.
class NoStallingCalls {
 public:
  NoStallingCalls();
  ~NoStallingCalls();
  NoStallingCalls(const NoStallingCalls&) = delete;
  NoStallingCalls& operator=(const NoStallingCalls&) = delete;
};

/// By devices, before such a call; `call` names it for the message.
void check_may_stall(const char* call);

}  // namespace convoy
