// Gated full attention with grouped queries, per-head norms and partial interleaved MRoPE.
// Source: Hugging Face transformers, Qwen3_5Attention.
#pragma once

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/model_config.h"
#include "shared/stage/weights.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// Owns the K and V planes of one layer. The residual in the workspace is updated in place.
class AttentionLayer {
 public:
  AttentionLayer(Device& device, const ModelConfig& config, int layer, int page_groups,
                 KvDtype kv_dtype);
  /// `block_tables`: device memory, [rows, pages_per_row].
  void run(Device& device, Stream& stream, const WeightSet& weights, const Workspace& work,
           const StepView& step, const int32_t* block_tables, int pages_per_row) const;
  uint64_t kv_bytes() const { return k_.bytes() + v_.bytes(); }
  /// Device memory of one page: [kv_heads] blocks (KvPlanes).
  std::byte* k_page(int32_t page) const { return page_of(k_, page); }
  std::byte* v_page(int32_t page) const { return page_of(v_, page); }
  uint64_t page_bytes() const { return page_bytes_; }
  KvDtype kv_dtype() const { return kv_dtype_; }

 private:
  std::byte* page_of(const Buffer& plane, int32_t page) const {
    return plane.as<std::byte>() + static_cast<uint64_t>(page) * page_bytes_;
  }

  ModelConfig config_;
  KvDtype kv_dtype_;
  uint64_t page_bytes_;
  Buffer k_;  // [page_groups, kv_heads] blocks
  Buffer v_;
};

}  // namespace convoy
