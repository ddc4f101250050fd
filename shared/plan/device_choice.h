// --devices auto: which GPUs a run takes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shared/plan/device_spec.h"

namespace convoy {

/// A GPU that could be taken.
struct DeviceOffer {
  DeviceSpec device;
  std::string name;                         ///< "NVIDIA H200"
  std::string architecture;                 ///< "sm_90"
  std::optional<uint64_t> available_bytes;  ///< nothing: not known, counts as plenty
};

struct DeviceChoice {
  std::vector<DeviceSpec> devices;  ///< in the order of the stages
  std::string reason;               ///< a sentence for the person
};

/// The fewest devices for which `holds` says that a run fits, one stage on each: of every number of
/// devices those with the most memory are asked, in the order of `offers` and then largest first.
/// Devices of different architectures are not put together unless `mixed`; of two architectures
/// that do with equally few the one with more memory is taken. Where nothing holds the run: all
/// devices of the architecture with the most memory, and the reason says so. `offers` must not be
/// empty; at most `most` devices are put together.
DeviceChoice choose_devices(const std::vector<DeviceOffer>& offers, bool mixed, size_t most,
                            const std::function<bool(const std::vector<DeviceSpec>&)>& holds);

}  // namespace convoy
