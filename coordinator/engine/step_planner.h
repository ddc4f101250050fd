// Turns sequences and columns into a step that every stage runs.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "shared/ipc/step_entry.h"
#include "shared/kv/sequence.h"

namespace convoy {

/// A step as the rings carry it and rank 0 runs it itself. Vectors keep their capacity from step to
/// step.
struct PlannedStep {
  StepKind kind = StepKind::decode;
  PositionClass position_class = PositionClass::generated;
  int width = 0;
  std::vector<StepLane> lanes;
  std::vector<ControlRow> control;  ///< [lanes * width]
  std::vector<BlockTableDelta> deltas;
  int lane_count() const { return static_cast<int>(lanes.size()); }
  int columns() const { return lane_count() * width; }
};

/// Appends `columns[i]` text columns to `sequences[i]` and writes the step. `position_class` prompt
/// makes a prefill step, generated a decode step. The sequences, all of one pool, take their pages
/// here. Errors: a sequence is full or page groups are missing; then no sequence was extended and
/// the step is unusable. `state_target`: as Sequence::extend(), for every lane.
Status plan_step(std::span<Sequence* const> sequences, std::span<const int> columns,
                 PositionClass position_class, PlannedStep& step, int32_t state_target = -1);

/// The step that frees the sequence's row and page groups on every stage that passes it.
void plan_release(const Sequence& sequence, PlannedStep& step);

}  // namespace convoy
