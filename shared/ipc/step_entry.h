// One entry of a step ring: the fixed-size records that tell a worker what to run, and the check of
// a received entry.
//
// Everything here is a wire format between processes of one build: sizes and padding are asserted,
// and a change of meaning changes kStepRingVersion (step_ring.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/result.h"
#include "kernels/ops/step.h"

namespace convoy {

enum class StepKind : uint32_t {
  prefill,      ///< prompt columns of one lane
  decode,       ///< one column per lane
  verify,       ///< a few columns per lane: the last token and its drafts
  save,         ///< a state image leaves the device
  release,      ///< rows and slots of the lanes are free when this step is reached
  tables,       ///< block-table deltas only
  keep_pages,   ///< the prefix cache begins to own the page groups that the deltas name
  drop_pages,   ///< and ends to; rows and blocks of these deltas are 0
  copy_pages,   ///< page group `block` of each delta to `page`; those in host memory come last
  copy_states,  ///< recurrent state in slot `block` of each delta to slot `page`, likewise
};
inline constexpr uint32_t kStepKinds = 10;
/// "prefill", "decode" and so on; "unknown" for other values.
const char* step_kind_name(StepKind kind);
/// Whether steps of this kind run columns through the layers.
constexpr bool step_runs_layers(StepKind kind) {
  return kind <= StepKind::verify;
}

/// Flags of a step.
inline constexpr uint32_t kStepBackEveryColumn =
    1;  ///< `back` carries every column, not only each lane's last live one
inline constexpr uint32_t kStepEndsPrompt =
    2;  ///< the last column is the last position of the prompt class
inline constexpr uint32_t kStepKnownFlags = kStepBackEveryColumn | kStepEndsPrompt;

struct StepHeader {
  uint32_t sequence;  ///< consecutive in a ring; set by the writer
  uint32_t epoch;     ///< link epoch; set by the writer
  StepKind kind;
  uint32_t group;  ///< lane group
  uint32_t lanes;  ///< 0..kMaxLanes; 1.. for steps that run layers
  uint32_t width;  ///< columns per lane; lanes * width rows of control follow
  PositionClass position_class;
  uint32_t delta_count;    ///< block-table deltas to apply before anything else
  uint32_t taps_mask;      ///< bit i: the stage that owns tapped layer i publishes it
  uint32_t link_sequence;  ///< transfer number of this step on the residual links; steps that run
                           ///< layers use one each
  uint32_t flags;          ///< kStep…
  uint32_t reserved[5];    ///< zero
};
static_assert(sizeof(StepHeader) == 64);

/// Per lane; columns of the lane repeat the first, third, fourth and fifth value in their
/// ControlRow.
struct StepLane {
  int32_t kv_row;             ///< row of the block table
  int32_t cache_position;     ///< position of the lane's first column in its sequence
  int32_t valid_columns;      ///< live columns, 0..width
  int32_t state_source;       ///< recurrent-state slot, -1: the zero state
  int32_t state_destination;  ///< recurrent-state slot; -1, the lane writes none, without columns
  int32_t pending_fold;       ///< accepted columns of the last verify to fold in first, -1: none
  int32_t record_buffer;      ///< replay record buffer of this lane, 0 or 1
  int32_t reserved;           ///< zero
};
static_assert(sizeof(StepLane) == 32);

/// An entry where it lies in the ring, for the writer.
struct StepEntry {
  StepHeader* header;
  StepLane* lanes;          ///< [kMaxLanes]
  BlockTableDelta* deltas;  ///< [max_deltas]
  ControlRow* control;      ///< [max_columns]
};

/// An entry where it lies in the ring, for the reader.
struct ConstStepEntry {
  const StepHeader* header;
  const StepLane* lanes;
  const BlockTableDelta* deltas;
  const ControlRow* control;  ///< registered memory: a stream copies it to the device
};

/// What a stage allocated: every index of an entry is below these.
struct StepLimits {
  int32_t kv_rows = std::numeric_limits<int32_t>::max();
  int32_t blocks_per_row = std::numeric_limits<int32_t>::max();
  int32_t pages = std::numeric_limits<int32_t>::max();
  int32_t positions = std::numeric_limits<int32_t>::max();
  int32_t state_slots = std::numeric_limits<int32_t>::max();
  int32_t host_pages = 0;  ///< numbered behind `pages`
  int32_t host_slots = 0;  ///< and behind `state_slots`
};

/// What the reader of a ring knows about the next entry.
struct StepExpectation {
  uint32_t sequence = 0;
  uint32_t epoch = 0;
  uint32_t max_columns = 0;
  uint32_t max_deltas = 0;
  StepLimits limits;
};

/// Checks every count, index and enum of an entry, since ring contents are input. An error names
/// the field, its value and what was allowed. Dead columns' cache and RoPE positions are not looked
/// at: no kernel reads them.
Status check_step(const ConstStepEntry& entry, const StepExpectation& expected);

}  // namespace convoy
