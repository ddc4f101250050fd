// A whole model as a chain of StageExecutors in one process, without links: what the residual is
// after every stage.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/engine/root.h"
#include "coordinator/engine/step_planner.h"
#include "kernels/device/device.h"
#include "shared/model/checkpoint.h"
#include "shared/stage/stage_executor.h"

namespace convoy {

struct StagePipelineOptions {
  std::vector<LayerRange> stages;  ///< empty: one stage
  StageLimits limits;
  LoadFormat load_format = LoadFormat::automatic;
  std::string device = "cpu";   ///< as --devices names it
  std::string instruction_set;  ///< of a CPU device
  int threads = 1;
  bool graphs = false;  ///< CUDA: captured steps, as a run has them
};

class StagePipeline {
 public:
  StagePipeline(const std::filesystem::path& model, StagePipelineOptions options);

  /// Called after every stage of a step with the residual of all columns, [columns, hidden].
  using Observer = std::function<void(size_t stage, std::span<const float> residual)>;

  /// Runs one step over `sequences` (columns[i] tokens of each, in `ids` one after another).
  /// `positions`, when not empty, are the three rotary rows [3, columns] of a single lane.
  void step(std::span<Sequence* const> sequences, std::span<const int> columns,
            std::span<const int32_t> ids, PositionClass position_class,
            std::span<const int32_t> positions = {}, const Observer& observer = {});
  /// Final norm, head and choice for these columns of the last step: [columns, vocab] logits.
  std::vector<float> logits(std::span<const int> columns);
  /// The likeliest id of one column of the last step.
  int32_t choose(int column);

  PagePool& pages() { return pages_; }
  const ModelConfig& config() const { return checkpoint_.config(); }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  size_t stages() const { return executors_.size(); }
  StageExecutor& executor(size_t stage) { return *executors_[stage]; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  /// Tells every stage of block-table entries outside a step.
  void update_tables(std::span<const BlockTableDelta> deltas) {
    for (auto& executor : executors_) executor->update_tables(*stream_, deltas);
  }

 private:
  std::vector<float> read_activations(const void* from, size_t values);

  Checkpoint checkpoint_;
  StagePipelineOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Root root_;
  std::vector<std::unique_ptr<StageExecutor>> executors_;
  PagePool pages_;
  PlannedStep step_;
};

/// One stage per layer.
std::vector<LayerRange> layer_by_layer(int layers);

}  // namespace convoy
