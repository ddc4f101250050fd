// Which stage owns which layers, on which device, and what it takes there.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "shared/model/model_config.h"
#include "shared/plan/device_spec.h"
#include "shared/plan/stage_memory.h"

namespace convoy {

struct StageAssignment {
  Rank rank;
  DeviceSpec device;
  LayerRange layers;
  StageMemory memory;
};

struct StagePlan {
  std::vector<StageAssignment> stages;  ///< by rank; stages[0] is the coordinator's
  StageLimits limits;
};

/// Cuts the layers into `stages` contiguous parts so that the heaviest part is as light as
/// possible; among such cuts the one whose earlier stages are lightest. `root_bytes` (embedding,
/// norm, head) count for the first part. Every part has at least one layer. Exact (dynamic
/// programming).
std::vector<LayerRange> split_by_weight(std::span<const uint64_t> layer_bytes, uint64_t root_bytes,
                                        int stages);

/// Puts a plan together. `stage_layers` empty: split_by_weight; otherwise exactly these counts.
/// Throws UsageError when the counts do not fit the model or the devices, or there are more devices
/// than layers.
StagePlan make_stage_plan(const ModelConfig& config, const std::vector<DeviceSpec>& devices,
                          const std::vector<int>& stage_layers, const StageLimits& limits);

}  // namespace convoy
