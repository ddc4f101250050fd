// Steps as a ledger sees them, without a ring.
#pragma once

#include <vector>

#include "stage_worker/kv_ledger.h"

namespace convoy {

/// One lane per row; `deltas` as they would travel.
inline Status apply_step(KvLedger& ledger, StepKind kind, const std::vector<int>& rows,
                         const std::vector<BlockTableDelta>& deltas = {}) {
  StepHeader header{};
  header.kind = kind;
  header.lanes = static_cast<uint32_t>(rows.size());
  header.delta_count = static_cast<uint32_t>(deltas.size());
  std::vector<StepLane> lanes(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) lanes[i].kv_row = rows[i];
  return ledger.apply(
      {.header = &header, .lanes = lanes.data(), .deltas = deltas.data(), .control = nullptr});
}

}  // namespace convoy
