#include "shared/plan/mixed_architectures.h"

#include <fmt/format.h>

#include "base/exit_code.h"

namespace convoy {

void refuse_mixed_architectures(const std::vector<ListedDevice>& devices, std::string_view source) {
  for (const ListedDevice& device : devices) {
    const ListedDevice& first = devices.front();
    if (device.architecture == first.architecture) continue;
    throw UsageError(fmt::format(
        "{}: {} ({}) is {}, {} ({}) is {}; architectures round differently, so the text would "
        "depend on the split. --allow-mixed-arch (CONVOY_ALLOW_MIXED_ARCH=1) runs them all the "
        "same",
        source, first.id, first.name, first.architecture, device.id, device.name,
        device.architecture));
  }
}

}  // namespace convoy
