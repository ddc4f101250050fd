// Device memory that operations need beside their arguments, counted before anything is allocated.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/device/device.h"
#include "kernels/ops/step.h"

namespace convoy {

/// Splits of generated-class attention on CUDA devices lie at fixed positions, so that bits depend
/// on positions only: first splits of one page each, so that short contexts keep many
/// multiprocessors busy, then longer ones, so that long contexts leave few partial results.
inline constexpr int kAttentionShortSplits = 16;
inline constexpr int kAttentionSplitTokens = 256;

/// The first position of a split.
constexpr int attention_split_begin(int split) {
  return split <= kAttentionShortSplits
             ? split * kPageTokens
             : kAttentionShortSplits * kPageTokens +
                   (split - kAttentionShortSplits) * kAttentionSplitTokens;
}
/// Splits that positions 0..tokens-1 lie in.
constexpr int attention_splits(int tokens) {
  const int in_short_splits = kAttentionShortSplits * kPageTokens;
  return tokens <= in_short_splits
             ? (tokens + kPageTokens - 1) / kPageTokens
             : kAttentionShortSplits +
                   (tokens - in_short_splits + kAttentionSplitTokens - 1) / kAttentionSplitTokens;
}

/// Most columns of a generated-class step on CUDA devices; wider ones are several passes.
inline constexpr int kMaxGeneratedColumns = 64;

struct AttentionScratchShape {
  int heads = 0;
  int head_dim = 0;
  int max_context_tokens = 0;  ///< KvPlanes::max_pages_per_row * kPageTokens
};
/// Partial results of the splits of kMaxGeneratedColumns columns: f32 [columns, heads, splits,
/// head_dim + 2].
constexpr size_t attention_scratch_bytes(DeviceKind kind, const AttentionScratchShape& shape,
                                         int generated_columns) {
  if (kind == DeviceKind::cpu) return 0;
  const auto splits = static_cast<size_t>(attention_splits(shape.max_context_tokens));
  return static_cast<size_t>(std::min(generated_columns, kMaxGeneratedColumns)) *
         static_cast<size_t>(shape.heads) * splits * static_cast<size_t>(shape.head_dim + 2) *
         sizeof(float);
}

struct GdnScratchShape {
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
};
/// What gdn_chunk keeps between its passes for one chunk of one value head: two triangles of 20
/// fragments of 512 bytes, four f32 factors per column, the decay of the whole chunk.
inline constexpr size_t kGdnChunkPartBytes = 2 * 20 * 512 + 4 * sizeof(float) * kPageTokens + 16;
/// For a step of `lanes` lanes and `columns` columns.
constexpr size_t gdn_scratch_bytes(DeviceKind kind, const GdnScratchShape& shape, int lanes,
                                   int columns) {
  if (kind == DeviceKind::cpu) return 0;
  // Whole chunks of 64 columns per lane.
  const auto chunks = static_cast<size_t>(columns / kPageTokens + lanes);
  return chunks * static_cast<size_t>(shape.value_heads) * kGdnChunkPartBytes;
}

}  // namespace convoy
