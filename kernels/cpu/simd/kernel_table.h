// The inner loops of the CPU operations, one table per instruction set. Each entry does a part of
// an operation on the calling thread; the operations (kernels/cpu/*.cpp) check shapes and split the
// work.
#pragma once

#include <cstdint>

#include "kernels/ops/op_set.h"

namespace convoy::cpu {

/// (column, head) pairs of one attention task.
inline constexpr int kAttentionRows = 64;

/// Rows first_row.. of a lane's live (column, head) pairs that read one KV head: row = column *
/// group + head in its group.
struct AttentionTask {
  int lane = 0;
  int kv_head = 0;
  int first_row = 0;
  int rows = 0;
};

struct KernelTable {
  void (*linear_panels)(const LinearArgs&, int panel_begin, int panel_end);
  void (*rms_norm_rows)(const RmsNormArgs&, int64_t begin, int64_t end);  ///< of rows * groups
  void (*gated_rms_norm_heads)(const GatedRmsNormArgs&, int64_t begin,
                               int64_t end);  ///< of rows * heads
  void (*embed_rows)(const EmbeddingArgs&, int64_t begin, int64_t end);
  void (*swiglu_rows)(const SwigluArgs&, int64_t begin, int64_t end);
  void (*gdn_gate_rows)(const GdnGatesArgs&, int64_t begin, int64_t end);
  void (*rope_columns)(const RopeArgs&, int64_t begin, int64_t end);
  void (*argmax_range)(const float* values, int begin, int end, float* best_value,
                       int32_t* best_index);
  void (*conv_channels)(const CausalConvArgs&, int lane, int channel_begin, int channel_end);
  void (*attention_rows)(const PagedAttentionArgs&, const AttentionTask&);
  /// One token's values of one head as int8 and fp16 scales (KvPlanes); size is a multiple of 16.
  void (*quantise_int8)(const float* x, int size, int8_t* q, uint16_t* scales);
  void (*gdn_normalise)(const GdnArgs&, int64_t begin, int64_t end);  ///< of columns * key_heads
  void (*gdn_recurrent_head)(const GdnArgs&, int lane, int value_head);
  void (*gdn_chunk_head)(const GdnArgs&, int lane, int value_head);
  /// out[i] = e^in[i], the exponential that all of the above use.
  void (*exponential)(const float* in, float* out, int count);
};

/// Call the functions of a table only on a processor that has its instructions. Null where the
/// compiler's target is not x86.
const KernelTable* avx512_kernels();
const KernelTable* avx2_kernels();
const KernelTable* scalar_kernels();

}  // namespace convoy::cpu
