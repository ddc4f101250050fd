// How many bytes a stage takes for how many page groups, and whether devices have them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace convoy {

/// Bytes of one rank on its device: bytes_min + (pages - pages_min) * bytes_per_page.
struct CapacityCurve {
  int pages_min = 0;  ///< fewer are of no use
  uint64_t bytes_min = 0;
  uint64_t bytes_per_page = 0;  ///< of one page group; 0 for a stage without attention
  uint64_t bytes_at(int pages) const {
    return bytes_min + static_cast<uint64_t>(pages - pages_min) * bytes_per_page;
  }
  friend bool operator==(const CapacityCurve&, const CapacityCurve&) = default;
};

/// The physical device of a stage and what a run may take there. Stages that name the same device
/// share its bytes.
struct DeviceMemory {
  std::string device;                       ///< one name per physical device
  std::optional<uint64_t> available_bytes;  ///< nothing: not known, and not limited
  friend bool operator==(const DeviceMemory&, const DeviceMemory&) = default;
};

/// What all stages on one device take together.
struct DeviceNeed {
  DeviceMemory memory;
  CapacityCurve need;  ///< the sum of its stages' curves
  bool fits() const { return !memory.available_bytes || need.bytes_min <= *memory.available_bytes; }
  friend bool operator==(const DeviceNeed&, const DeviceNeed&) = default;
};

/// One entry per device, in the order of their first stages. `memory` and `curves` have one entry
/// per stage; all curves begin at the same pages_min.
std::vector<DeviceNeed> device_needs(std::span<const DeviceMemory> memory,
                                     std::span<const CapacityCurve> curves);

/// Page groups that every device holds, at most `most`: the least device decides. At least
/// pages_min, whether or not that fits.
int page_groups_held(std::span<const DeviceNeed> needs, int most);

}  // namespace convoy
