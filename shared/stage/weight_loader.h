// Fills device memory with the weights of a checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/weight_table.h"
#include "shared/stage/staged_copy.h"

namespace convoy {

/// Told after every stored tensor: how many more bytes are now on the device or on their way there.
/// Throwing ends the load.
using LoadProgress = std::function<void(uint64_t loaded_bytes)>;

/// Reads what the checkpoint stores, or makes random values where it has none (LoadFormat::dummy).
/// Keeps what loading needs (pinned buffers, threads) until it is destroyed. One thread uses it.
class WeightLoader {
 public:
  /// All outlive it.
  WeightLoader(Device& device, Stream& stream, const Checkpoint& checkpoint, LoadProgress progress);

  Device& device() { return device_; }
  /// `prefix` is put before every tensor name, e.g. "layers.3."; `destination` has weight_bytes().
  /// Each tensor is mapped, passed on and unmapped in turn. The values are there after finish() or
  /// when the loader is gone. Throws StartError.
  void load(const WeightSpec& spec, const std::string& prefix, void* destination);
  void finish();

 private:
  void load_stored(const WeightSpec& spec, const std::string& name, int first_row,
                   void* destination);
  void make_random(const WeightSpec& spec, const std::string& name, int first_row,
                   void* destination);
  void make_random_panels(const WeightSpec& spec, FillRandomArgs fill, int rows, int first_row,
                          void* destination);
  void copy_to_device(void* destination, const void* source, size_t bytes);

  Device& device_;
  Stream& stream_;
  const Checkpoint& checkpoint_;
  LoadProgress progress_;
  std::unique_ptr<StagedCopy> staged_;  // CUDA devices, from the first large tensor on
};

}  // namespace convoy
