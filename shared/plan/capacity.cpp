#include "shared/plan/capacity.h"

#include <algorithm>

#include "base/check.h"

namespace convoy {

std::vector<DeviceNeed> device_needs(std::span<const DeviceMemory> memory,
                                     std::span<const CapacityCurve> curves) {
  CONVOY_CHECK_OP(memory.size(), ==, curves.size());
  std::vector<DeviceNeed> needs;
  for (size_t stage = 0; stage < memory.size(); ++stage) {
    auto need = std::find_if(needs.begin(), needs.end(), [&](const DeviceNeed& n) {
      return n.memory.device == memory[stage].device;
    });
    if (need == needs.end()) {
      needs.push_back({memory[stage], {curves[stage].pages_min, 0, 0}});
      need = needs.end() - 1;
    }
    CONVOY_CHECK_OP(need->need.pages_min, ==, curves[stage].pages_min);
    need->need.bytes_min += curves[stage].bytes_min;
    need->need.bytes_per_page += curves[stage].bytes_per_page;
  }
  return needs;
}

int page_groups_held(std::span<const DeviceNeed> needs, int most) {
  int held = most;
  for (const DeviceNeed& n : needs) {
    if (!n.memory.available_bytes || n.need.bytes_per_page == 0) continue;
    if (!n.fits()) return n.need.pages_min;
    const uint64_t more = (*n.memory.available_bytes - n.need.bytes_min) / n.need.bytes_per_page;
    if (more < static_cast<uint64_t>(held - n.need.pages_min))
      held = n.need.pages_min + static_cast<int>(more);
  }
  return held;
}

}  // namespace convoy
