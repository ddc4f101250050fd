#include "coordinator/engine/step_planner.h"

#include <algorithm>

#include "base/check.h"

namespace convoy {
namespace {

// Whether every lane can be extended, so that none is when one cannot.
Status check_room(std::span<Sequence* const> sequences, std::span<const int> columns) {
  int pages = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto unreserved = sequences[i]->unreserved_pages(columns[i]);
    if (!unreserved) return Error{unreserved.error()};
    pages += unreserved.value();
  }
  return sequences.front()->pool().check_free(pages);
}

}  // namespace

Status plan_step(std::span<Sequence* const> sequences, std::span<const int> columns,
                 PositionClass position_class, PlannedStep& step, int32_t state_target) {
  CONVOY_CHECK(
      !sequences.empty() && sequences.size() == columns.size() && sequences.size() <= kMaxLanes,
      "lanes of a step");
  if (Status status = check_room(sequences, columns); !status) return status;
  step.kind = position_class == PositionClass::prompt ? StepKind::prefill : StepKind::decode;
  step.position_class = position_class;
  step.width = *std::max_element(columns.begin(), columns.end());
  step.lanes.clear();
  step.control.clear();
  step.deltas.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const auto span = sequence.extend(columns[i], step.deltas, state_target);
    CONVOY_CHECK(span.ok(), span.ok() ? "" : span.error());
    StepLane lane{};
    lane.kv_row = sequence.lane();
    lane.cache_position = span.value().first_position;
    lane.valid_columns = columns[i];
    lane.state_source = span.value().state_source;
    lane.state_destination = span.value().state_destination;
    lane.pending_fold = -1;
    step.lanes.push_back(lane);
    for (int column = 0; column < step.width; ++column) {
      const int32_t position = lane.cache_position + column;
      step.control.push_back({.cache_position = position,
                              .rope_position = {position, position, position},
                              .kv_row = lane.kv_row,
                              .valid_columns = lane.valid_columns,
                              .state_source = lane.state_source,
                              .state_destination = lane.state_destination});
    }
  }
  return {};
}

void plan_release(const Sequence& sequence, PlannedStep& step) {
  step = {};
  step.kind = StepKind::release;
  StepLane lane{};
  lane.kv_row = sequence.lane();
  lane.state_source = -1;
  lane.state_destination = -1;
  lane.pending_fold = -1;
  step.lanes.push_back(lane);
}

}  // namespace convoy
