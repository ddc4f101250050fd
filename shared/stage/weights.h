// Weights of one layer or of the root, in device memory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/weight_table.h"

namespace convoy {

/// Told after every stored tensor: how many more bytes are now on the device. Throwing ends the
/// load.
using LoadProgress = std::function<void(uint64_t loaded_bytes)>;

/// The weights of one table (layer_weight_table or root_weight_table), loaded.
class WeightSet {
 public:
  /// `prefix` is put before every tensor name, e.g. "layers.3.". Each tensor is mapped, packed and
  /// unmapped in turn. Throws StartError.
  WeightSet(Device& device, Stream& stream, const Checkpoint& checkpoint,
            const std::vector<WeightSpec>& table, const std::string& prefix,
            const LoadProgress& progress);

  LinearWeight linear(const std::string& role) const;
  const float* vector(const std::string& role) const;
  const uint16_t* table(const std::string& role) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    WeightSpec spec;
    Buffer buffer;
  };
  const Entry& entry(const std::string& role, WeightForm form) const;

  std::map<std::string, Entry> entries_;
  uint64_t bytes_ = 0;
};

}  // namespace convoy
