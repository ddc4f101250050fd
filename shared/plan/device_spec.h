// What people write after --devices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {

/// One entry of --devices.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::cpu;
  std::string id;  ///< normalised: "cpu", "cuda:1", "GPU-<uuid>", "0000:3b:00.0"
  /// "GPU-…" of a card that identify_devices() found, else empty. Means the same card in every
  /// process, which "cuda:1" does not.
  std::string uuid = {};
};

/// Parses a comma-separated list: `cpu`, `cuda:0`, `0`, `GPU-<uuid>` or a PCI id; ids may repeat.
/// `source` names the flag or variable in errors. Throws UsageError for an empty list, an unknown
/// word, several sets with ; between them, or CPU and CUDA devices mixed (CPU links carry f32, CUDA
/// links bf16).
std::vector<DeviceSpec> parse_devices(std::string_view text, std::string_view source);

/// Parses "5,4,3": positive layer counts per stage. Throws UsageError.
std::vector<int> parse_stage_layers(std::string_view text, std::string_view source);

}  // namespace convoy
