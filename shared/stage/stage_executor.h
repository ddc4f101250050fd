// Runs the layers of one stage: what rank 0 and every stage worker have in common.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "kernels/device/device.h"
#include "shared/ipc/step_entry.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/stage_memory.h"
#include "shared/stage/attention_layer.h"
#include "shared/stage/gdn_layer.h"
#include "shared/stage/host_cache.h"
#include "shared/stage/host_staging.h"
#include "shared/stage/layer_state.h"
#include "shared/stage/weights.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// What a stage must know of a step. The spans are read before the call returns.
struct StageStep {
  std::span<const ControlRow> control;  ///< [lanes * width]
  std::span<const BlockTableDelta> deltas;
  int lanes = 0;
  int width = 0;
  PositionClass position_class = PositionClass::prompt;
};

/// Owns weights, KV planes, state slots, block tables and workspace of layers [begin, end). One
/// thread uses it. Its calls enqueue where the device's streams do; the host may be kStepsAhead
/// steps ahead of the device and waits then.
class StageExecutor {
 public:
  static constexpr int kStepsAhead = HostStaging::kSlots;

  /// Allocates everything and loads the weights of `layers`; other tensors are never mapped. Throws
  /// StartError.
  StageExecutor(Device& device, Stream& stream, const Checkpoint& checkpoint, LayerRange layers,
                const StageLimits& limits, const LoadProgress& progress);

  /// Before the first step and before links open: runs every kernel once and, where the device has
  /// graphs and `graphs` is true, captures the steps that repeat (a generated token for every
  /// number of lanes, a whole prompt chunk). No state changes. Throws StartError.
  void prepare(Stream& stream, bool graphs);

  /// Device memory, activations [columns, hidden]: the stage's input before run(), its output
  /// after.
  void* residual() const { return work_.residual.data(); }

  /// Changes block tables as a step says that runs no layers. Indices must be in range (checked).
  void update_tables(Stream& stream, std::span<const BlockTableDelta> deltas);
  /// What a step does that runs no layers: changes block tables, copies page groups or recurrent
  /// states of all layers, also to and from host memory. Numbers must be in range.
  void move(Stream& stream, StepKind kind, std::span<const BlockTableDelta> deltas);
  /// Applies the step's deltas, then runs all layers on the residual.
  void run(Stream& stream, const StageStep& step);

  /// Gathers the last live column of every lane: device memory, activations [lanes, hidden], valid
  /// until the next step. `valid_columns` has one entry per lane; a lane without live columns gives
  /// its first column.
  const void* last_columns(Stream& stream, std::span<const int> valid_columns, int width);

  /// Writes the state of one sequence, this stage's layers of it, into a saved state's file, and
  /// gives the hash of each layer, first layer first. Waits for the stream. Page groups and slot
  /// must be in range (checked). Errors: writing.
  Result<std::vector<uint64_t>> save_state(Stream& stream, const SequencePlace& place, int fd,
                                           const StateLayout& layout);
  /// Reads them back into page groups and slot of a fresh sequence, whose block table the next step
  /// must bring. Errors: reading, an altered layer; its memory then holds anything.
  Status load_state(Stream& stream, const SequencePlace& place, int fd, const StateLayout& layout);

  int hidden() const { return config_.hidden_size; }
  size_t column_bytes() const {
    return static_cast<size_t>(config_.hidden_size) * work_.activation_bytes;
  }
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
  void choose_products(Stream& stream) const;
  void allocate_workspace(Stream& stream);
  void account() const;
  void copy_page(Stream& stream, int32_t from, int32_t to) const;
  void copy_state(Stream& stream, int32_t from, int32_t to) const;
  void stage(Stream& stream, std::span<const ControlRow> control,
             std::span<const BlockTableDelta> deltas);
  void check_place(const SequencePlace& place) const;
  void run_layers(Stream& stream, const StepView& step) const;
  std::unique_ptr<Graph> capture(Stream& stream, const StepView& step) const;
  StepView view(int lanes, int width, PositionClass position_class) const {
    return {work_.control.as<ControlRow>(), lanes, width, position_class};
  }

  Device& device_;
  ModelConfig config_;
  LayerRange layers_;
  StageLimits limits_;
  Workspace work_;
  Buffer block_tables_;  // i32 [lanes, pages_per_row]; none without attention layers
  std::vector<Layer> stack_;
  std::optional<HostCache> host_cache_;
  Buffer moved_states_;  // saved states pass through it
  StageMemory memory_;
  std::unique_ptr<HostStaging> staging_;                             // control rows, then deltas
  std::array<std::unique_ptr<Graph>, kMaxLanes + 1> decode_graphs_;  // by lanes; null: none
  std::unique_ptr<Graph> chunk_graph_;  // one lane, prefill_chunk_tokens columns
};

}  // namespace convoy
