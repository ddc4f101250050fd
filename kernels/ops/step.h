// What one step runs on: a rectangle of lanes × width columns.
//
// A column is one token position of one sequence. A step has `lanes` sequences with `width` columns
// each; column c = lane * width + i. A lane may use fewer columns than `width` (valid_columns): the
// rest are dead. Prefill has one lane of many columns, decode many lanes of one, verify many lanes
// of a few.
#pragma once

#include <cstdint>

namespace convoy {

/// Tokens in one page of KV cache, and the grid that prefill works on.
inline constexpr int kPageTokens = 64;
/// Sequences in one step.
inline constexpr int kMaxLanes = 16;

/// A position's class decides its kernels: prompt positions use prefill kernels (chunked GDN),
/// generated positions decode kernels (sequential GDN), whatever the width of the step.
enum class PositionClass : uint32_t { prompt = 0, generated = 1 };

/// The control block has one row per column, in device memory. It travels unchanged through the
/// step ring.
struct ControlRow {
  int32_t cache_position;    ///< index of this column's token in its sequence, from 0
  int32_t rope_position[3];  ///< rotary positions: time, height, width; equal for text
  int32_t kv_row;            ///< row of the block table that lists the sequence's pages
  int32_t valid_columns;     ///< columns of this lane that are alive, 0..width
  int32_t state_source;  ///< recurrent-state slot to read; -1: the zero state (start of a sequence)
  int32_t state_destination;  ///< recurrent-state slot to write; may equal the source, but is no
                              ///< other lane's slot
};
static_assert(sizeof(ControlRow) == 32);

/// block_table[kv_row][block] = page.
struct BlockTableDelta {
  int32_t kv_row;
  int32_t block;
  int32_t page;
};
static_assert(sizeof(BlockTableDelta) == 12);

struct StepView {
  const ControlRow* control = nullptr;  ///< device memory, [lanes * width]
  int lanes = 0;
  int width = 0;
  PositionClass position_class = PositionClass::prompt;
  int columns() const { return lanes * width; }
};

}  // namespace convoy
