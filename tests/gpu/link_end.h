// One end of a link in a process of its own, for the tests of links between processes. The test
// program starts itself with these arguments; standard input says when to stop, standard output
// what happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/ipc/stage_link.h"

namespace convoy::test {

inline constexpr const char* kLinkEndFlag = "--link-end";
/// The region's descriptor in the child.
inline constexpr int kLinkEndFd = 3;

struct LinkEndTask {
  bool sends = true;
  std::string device = "cuda:0";
  StageLinkOptions link;
  /// Transfers to make; 0: until standard input ends, then the end releases its own waits.
  uint32_t transfers = 0;
  /// Every transfer has the largest payload; otherwise one in 500 has.
  bool large = false;
  /// Connects, then waits for standard input to end without a transfer.
  bool silent = false;
};

std::vector<std::string> to_arguments(const LinkEndTask& task);

/// What a child does. Prints "connected <transport> <fallback>", then "done <transfers> <wrong
/// words> <milliseconds>", or "aborted <transfers> <wrong words> <milliseconds>". The exit code is
/// 0 unless it could not connect.
int run_link_end(const std::vector<std::string>& arguments);

}  // namespace convoy::test
