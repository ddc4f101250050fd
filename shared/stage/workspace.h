// Scratch that all layers of a stage share. Device memory; every area has room for the widest step.
#pragma once

#include <cstddef>

#include "kernels/device/buffer.h"
#include "kernels/ops/step.h"

namespace convoy {

/// Shapes are [columns, width] with the widths of shared/plan/stage_memory.h; a layer uses a dense
/// prefix of each area.
struct Workspace {
  Buffer residual;    ///< f32: the stage's input and output
  Buffer normed;      ///< f32: normalised residual
  Buffer projection;  ///< f32: fused input projections; gate and up
  Buffer mixed;       ///< f32: convolved q|k|v
  Buffer attended;    ///< f32: attention or GDN read-out; SwiGLU output
  Buffer gates;       ///< f32: g, then beta
  Buffer boundary;    ///< f32 [lanes, hidden]: the columns that leave the last stage
  Buffer control;     ///< ControlRow per column
  Buffer inv_freq;    ///< f32 [rotary_dim/2]
  Buffer rope_axis;   ///< i32 [rotary_dim/2]
};

}  // namespace convoy
