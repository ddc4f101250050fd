// Device calls that wait for every stream of the process.
//
// On a CUDA device, allocating and releasing memory, registering and unregistering host memory,
// mapping another process's memory and capturing a graph may return only when no stream of the
// process waits any more (measured; docs/architecture.md). A stream that waits for a peer then
// holds the thread inside the driver, where no abort reaches it. So the thread that drives a stage
// makes none of these calls while links are open.
#pragma once

namespace convoy {

/// While one of these lives, the calling thread may make no stalling call: the device ends the
/// process (a check). Nests; other threads are not concerned. Constructed and destroyed on the same
/// thread.
class NoStallingCalls {
 public:
  NoStallingCalls();
  ~NoStallingCalls();
  NoStallingCalls(const NoStallingCalls&) = delete;
  NoStallingCalls& operator=(const NoStallingCalls&) = delete;
};

/// By devices, before such a call; `call` names it in the message.
void check_may_stall(const char* call);

}  // namespace convoy
