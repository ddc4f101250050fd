// All kernels and the table of them, for the instruction set that the including file is compiled
// for.
#pragma once

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/conv.h"
#include "kernels/cpu/simd/elementwise.h"
#include "kernels/cpu/simd/gdn.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/kv_int8.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/norms.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

void exponential(const float* in, float* out, int count) {
  for (int i = 0; i < count; i += kLanes) {
    store_first(out + i, exp(load_first(in + i, count - i)), count - i);
  }
}

constexpr KernelTable kKernels{
    .linear_panels = linear_panels,
    .rms_norm_rows = rms_norm_rows,
    .gated_rms_norm_heads = gated_rms_norm_heads,
    .embed_rows = embed_rows,
    .swiglu_rows = swiglu_rows,
    .gdn_gate_rows = gdn_gate_rows,
    .rope_columns = rope_columns,
    .argmax_range = argmax_range,
    .conv_channels = conv_channels,
    .attention_rows = attention_rows,
    .quantise_int8 = quantise_int8,
    .gdn_normalise = gdn_normalise,
    .gdn_recurrent_head = gdn_recurrent_head,
    .gdn_chunk_head = gdn_chunk_head,
    .exponential = exponential,
};

}  // namespace
}  // namespace convoy::cpu
