// One end of a probed pair: a process of its own, as a stage is. It opens its device and both links
// and takes turns with the other end, in the order that both derive from the options.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "shared/ipc/stage_link.h"

namespace convoy {

/// What is measured: from one token's residual to a chunk of many.
inline constexpr std::array<size_t, 7> kProbeSizes{
    size_t{10} << 10, size_t{64} << 10, size_t{256} << 10, size_t{1} << 20,
    size_t{4} << 20,  size_t{16} << 20, size_t{32} << 20};

/// Descriptors of the child.
inline constexpr int kProbeOutputFd = 3;    ///< a pipe; ProbeMessage lines
inline constexpr int kProbeForwardFd = 4;   ///< link from the first end to the second
inline constexpr int kProbeBackwardFd = 5;  ///< link from the second end to the first

struct ProbeEndOptions {
  bool first = true;
  std::string device, uuid;  ///< as in DeviceSpec
  int threads = 1;
  LinkWish wish = LinkWish::pinned;
  LinkDoorbell doorbell = LinkDoorbell::words;
  int rounds = 200;  ///< round trips of one size; fewer for payloads of many megabytes
  int spin_iterations = 0;
  int parent_pid = 0;
};

/// Of both links of a pair.
StageLinkOptions probe_link_options(const ProbeEndOptions& options);

/// What the hidden command is called with.
std::vector<std::string> to_arguments(const ProbeEndOptions& options);

/// Measures and says so on kProbeOutputFd, errors included. Returns the exit code.
int run_probe_end(const ProbeEndOptions& options);

}  // namespace convoy
