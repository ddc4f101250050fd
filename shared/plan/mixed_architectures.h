// Cards of different kinds in one run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// A CUDA device that --devices names, as the driver lists it.
struct ListedDevice {
  std::string id;            ///< as DeviceSpec::id
  std::string name;          ///< "NVIDIA H200"
  std::string uuid;          ///< "GPU-…"
  std::string architecture;  ///< "sm_90"
};

/// Throws UsageError when the devices have more than one architecture: their kernels round
/// differently, so the same prompt would get another text with every split. `source` names the flag
/// or variable that listed them.
void refuse_mixed_architectures(const std::vector<ListedDevice>& devices, std::string_view source);

}  // namespace convoy
