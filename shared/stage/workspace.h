// Scratch that all layers of a stage share. Device memory; every area has room for the widest step.
#pragma once

#include <cstddef>

#include "kernels/device/buffer.h"
#include "kernels/ops/step.h"

namespace convoy {

/// Shapes are [columns, width] with the widths of shared/plan/stage_memory.h; a layer uses a dense
/// prefix of each area. Activations unless f32 is written.
struct Workspace {
  Buffer residual;         ///< the stage's input and output
  Buffer normed;           ///< normalised residual
  Buffer projection;       ///< fused input projections; gate and up
  Buffer mixed;            ///< convolved q|k|v
  Buffer attended;         ///< attention or GDN read-out; SwiGLU output
  Buffer gates;            ///< f32: g, then beta
  Buffer boundary;         ///< [lanes, hidden]: the columns that leave the last stage
  Buffer control;          ///< ControlRow per column
  Buffer deltas;           ///< BlockTableDelta: what the step in hand changes
  Buffer scratch;          ///< what operations need beside their arguments
  Buffer inv_freq;         ///< f32 [rotary_dim/2]
  Buffer rope_axis;        ///< i32 [rotary_dim/2]
  int padded_columns = 0;  ///< columns that every area has memory for
  size_t activation_bytes = 0;
};

}  // namespace convoy
