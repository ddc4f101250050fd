// Measures links between devices with the processes and the code that a run uses.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/probe/probe_end.h"
#include "coordinator/probe/probe_messages.h"
#include "shared/plan/device_spec.h"

namespace convoy {

struct ProbeOptions {
  std::filesystem::path program;       ///< this program: it starts itself with a hidden command
  std::vector<DeviceSpec> devices;     ///< identified; pairs are made of these, in both directions
  std::filesystem::path runtime_root;  ///< where its folder lies while it runs
  LinkDoorbell doorbell = LinkDoorbell::words;
  int threads = 1;  ///< of a CPU device
  int rounds = 200;
};

/// One direction of one pair with one transport.
struct ProbedLink {
  size_t from = 0, to = 0;  ///< indices into ProbeResult::devices
  std::string transport;
  std::string fallback;  ///< why the transport is not the one that was tried
  std::vector<LinkMeasurement> sizes;
};

struct ProbeResult {
  std::vector<DeviceInfo> devices;  ///< each named device once
  std::vector<ProbedLink> links;
};

/// Every pair of named devices, an entry that repeats or stands alone paired with itself; CUDA
/// pairs with pinned slots and with device memory. `note` is told what is being measured. Main
/// thread. Throws StartError with what an end said.
ProbeResult probe(const ProbeOptions& options, const std::function<void(const std::string&)>& note);

}  // namespace convoy
