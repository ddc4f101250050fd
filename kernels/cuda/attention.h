// The kernels behind CudaOpSet::paged_attention, one function per position class and kind of card.
// Their arguments have passed the checks of paged_attention.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "kernels/ops/op_set.h"

namespace convoy::cuda {

inline constexpr int kMaxAttentionDim = 256;

/// Prompt class, on every card.
void attend_prompt(cudaStream_t stream, const PagedAttentionArgs& args);

/// Prompt class with the matrix instructions of compute capability 9.0. Its bits differ from
/// attend_prompt's.
bool has_hopper_attention(const PagedAttentionArgs& args);
void attend_prompt_hopper(cudaStream_t stream, const PagedAttentionArgs& args);

/// Generated class, on every card.
void attend_generated(cudaStream_t stream, const PagedAttentionArgs& args);

/// Up to kMaxGeneratedColumns columns of a generated-class step, and the partial results of their
/// splits.
struct GeneratedPass {
  PagedAttentionArgs args;  ///< of these columns
  int columns_before = 0;   ///< of every lane, that earlier passes computed
  int splits = 0;           ///< room for each row's
  float* values = nullptr;  ///< [columns, heads, splits, head_dim]
  float2* sums = nullptr;   ///< [columns, heads, splits]: largest score (times score_scale), sum
};
void combine_splits(cudaStream_t stream, const GeneratedPass& pass);

}  // namespace convoy::cuda
