// A step that the tests send and damage.
#pragma once

#include "shared/ipc/step_entry.h"

namespace convoy {

inline constexpr StepLimits kVerifyStepLimits{
    .kv_rows = 8, .blocks_per_row = 16, .pages = 100, .positions = 1024, .state_slots = 12};

// A verify step of 2 lanes with 3 columns, of which lane 1 uses 2, and 2 deltas; valid within
// kVerifyStepLimits.
inline void fill_verify_step(const StepEntry& entry) {
  StepHeader& header = *entry.header;
  header.kind = StepKind::verify;
  header.lanes = 2;
  header.width = 3;
  header.position_class = PositionClass::generated;
  header.delta_count = 2;
  entry.deltas[0] = {.kv_row = 3, .block = 1, .page = 40};
  entry.deltas[1] = {.kv_row = 4, .block = 0, .page = 41};
  for (int32_t i = 0; i < 2; ++i) {
    entry.lanes[i] = {.kv_row = 3 + i,
                      .cache_position = 100 * i + 7,
                      .valid_columns = 3 - i,
                      .state_source = i - 1,
                      .state_destination = 2 + i,
                      .pending_fold = i,
                      .record_buffer = i,
                      .reserved = 0};
    for (int32_t j = 0; j < 3; ++j) {
      const StepLane& lane = entry.lanes[i];
      const int32_t position = lane.cache_position + j;
      entry.control[i * 3 + j] = {position,          {position, position, position},
                                  lane.kv_row,       lane.valid_columns,
                                  lane.state_source, lane.state_destination};
    }
  }
}

}  // namespace convoy
