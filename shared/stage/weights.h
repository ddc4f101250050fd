// Weights of one layer or of the root, in device memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/plan/weight_table.h"
#include "shared/stage/weight_loader.h"

namespace convoy {

/// The weights of one table (layer_weight_table or root_weight_table).
class WeightSet {
 public:
  /// `prefix` is put before every tensor name, e.g. "layers.3.". The values are there after
  /// loader.finish(). Throws StartError.
  WeightSet(WeightLoader& loader, const std::vector<WeightSpec>& table, const std::string& prefix);
  /// With a loader of its own: the values are there when it returns.
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
  void load(WeightLoader& loader, const std::vector<WeightSpec>& table, const std::string& prefix);
  const Entry& entry(const std::string& role, WeightForm form) const;

  std::map<std::string, Entry> entries_;
  uint64_t bytes_ = 0;
};

}  // namespace convoy
