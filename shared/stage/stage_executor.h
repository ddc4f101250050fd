// Runs the layers of one stage: what rank 0 and every stage worker have in common.
#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "kernels/device/device.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/stage_memory.h"
#include "shared/stage/attention_layer.h"
#include "shared/stage/gdn_layer.h"
#include "shared/stage/weights.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// Owns weights, KV planes, state slots, block tables and workspace of layers [begin, end). One
/// thread uses it.
class StageExecutor {
 public:
  /// Allocates everything and loads the weights of `layers`; other tensors are never mapped. Throws
  /// StartError.
  StageExecutor(Device& device, Stream& stream, const Checkpoint& checkpoint, LayerRange layers,
                const StageLimits& limits, const LoadProgress& progress);

  /// Device memory, f32 [columns, hidden]: the stage's input before run(), its output after.
  float* residual() const { return work_.residual.as<float>(); }

  /// Sets block `block` of row `kv_row` to page group `page`, in stream order. All three must be in
  /// range (checked).
  void set_page(Stream& stream, int32_t kv_row, int32_t block, int32_t page);

  /// Copies the control block ([lanes * width] rows, host memory) to the device and runs all layers
  /// on the residual.
  void run(Stream& stream, std::span<const ControlRow> control, int lanes, int width,
           PositionClass position_class);

  /// Gathers the last live column of every lane: device memory, f32 [lanes, hidden], valid until
  /// the next step. `valid_columns` has one entry per lane; a lane without live columns gives its
  /// first column.
  const float* last_columns(Stream& stream, std::span<const int> valid_columns, int width);

  int hidden() const { return config_.hidden_size; }
  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return layers_; }
  const StageLimits& limits() const { return limits_; }
  /// What was taken; equals stage_memory() of the plan.
  StageMemory memory() const { return memory_; }

 private:
  struct Layer {
    WeightSet weights;
    std::variant<AttentionLayer, GdnLayer> mixer;
  };
  void allocate_workspace(Stream& stream);
  void account() const;

  Device& device_;
  ModelConfig config_;
  LayerRange layers_;
  StageLimits limits_;
  Workspace work_;
  Buffer block_tables_;  // i32 [lanes, pages_per_row]; none without attention layers
  std::vector<Layer> stack_;
  StageMemory memory_;
};

}  // namespace convoy
