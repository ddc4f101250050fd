// Every byte a stage takes, counted before anything is allocated.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "kernels/device/device.h"
#include "kernels/ops/kv_dtype.h"
#include "kernels/ops/step.h"
#include "shared/model/model_config.h"

namespace convoy {

/// Sizes that every stage of one run shares.
struct StageLimits {
  int max_context_tokens = 0;
  int prefill_chunk_tokens = 512;  ///< a multiple of kPageTokens
  int lanes = 1;                   ///< sequences in one step, 1..kMaxLanes
  int page_groups = 0;             ///< pages of every KV plane
  int image_slots = 0;             ///< recurrent states that the prefix cache keeps
  int host_pages = 0;              ///< and its page groups in host memory
  int host_slots = 0;              ///< and its recurrent states there
  KvDtype kv_dtype = KvDtype::f32;
  int pages_per_row() const { return (max_context_tokens + kPageTokens - 1) / kPageTokens; }
  /// Source and destination of every lane alternate; images lie behind them.
  int state_slots() const { return 2 * lanes + image_slots; }
  /// Columns of the widest step.
  int max_columns() const { return prefill_chunk_tokens > lanes ? prefill_chunk_tokens : lanes; }
  /// Block-table entries that one step may change: every lane may begin a page, and a chunk begins
  /// one per 64 columns.
  int max_deltas() const { return max_columns() / kPageTokens + lanes + 1; }
};

struct StageMemory {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t state_bytes = 0;      ///< GDN and convolution slots
  uint64_t workspace_bytes = 0;  ///< activations, control block, block tables
  uint64_t link_bytes = 0;       ///< what links take of this device's memory
  /// CUDA devices: context, code, the matrix library's workspace, ends of allocations
  uint64_t runtime_bytes = 0;
  uint64_t total() const {
    return weight_bytes + kv_bytes + state_bytes + workspace_bytes + link_bytes + runtime_bytes;
  }
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

/// Values per column in each scratch area of a stage: the widest need of its layers.
struct WorkspaceWidths {
  int64_t hidden = 0;      ///< residual and normalised input
  int64_t projection = 0;  ///< fused input projections; gate and up
  int64_t mixed = 0;       ///< convolved q|k|v
  int64_t attended = 0;    ///< attention or GDN read-out; SwiGLU output
  int64_t gates = 0;       ///< g and beta, f32
};
WorkspaceWidths workspace_widths(const ModelConfig& config, LayerRange layers);

/// Bytes of one activation: residual, links and what lies between operations.
constexpr size_t activation_bytes(DeviceKind kind) {
  return kind == DeviceKind::cpu ? sizeof(float) : sizeof(uint16_t);
}
/// Columns that every area has memory for: the widest step, on CUDA devices in whole tiles of the
/// matrix products of a prompt.
int workspace_columns(const StageLimits& limits, DeviceKind kind);
/// Scratch of the operations of `layers` (kernels/ops/scratch.h).
uint64_t scratch_bytes(const ModelConfig& config, LayerRange layers, const StageLimits& limits,
                       DeviceKind kind);

/// Bytes of one K or V page of one attention layer.
uint64_t kv_page_bytes(const ModelConfig& config, KvDtype dtype);
/// Bytes of a page group, and of the recurrent state of a sequence, in these layers.
uint64_t page_group_bytes(const ModelConfig& config, LayerRange layers, KvDtype kv_dtype);
uint64_t state_image_bytes(const ModelConfig& config, LayerRange layers);
/// Bytes of one GDN state slot, and of one convolution state slot, of one layer.
uint64_t gdn_state_bytes(const ModelConfig& config);
uint64_t conv_state_bytes(const ModelConfig& config);

/// What one layer brings into its stage, or several together: bytes add up, workspace is shared.
struct LayerNeeds {
  uint64_t weight_bytes = 0;
  uint64_t page_bytes = 0;   ///< of one page group; 0 without attention
  uint64_t state_bytes = 0;  ///< all slots
  WorkspaceWidths widths;
  uint64_t scratch_bytes = 0;
  uint64_t rounding_bytes = 0;  ///< lost at the ends of what a card hands out
  LayerNeeds& operator+=(const LayerNeeds& other);
};
/// Does not depend on limits.page_groups.
LayerNeeds layer_needs(const ModelConfig& config, int layer, const StageLimits& limits,
                       DeviceKind kind);

/// What the stage with these layers takes on its device, without links. Rank 0 adds root_memory().
StageMemory stage_memory_of(const ModelConfig& config, const LayerNeeds& needs,
                            const StageLimits& limits, DeviceKind kind);
StageMemory stage_memory(const ModelConfig& config, LayerRange layers, const StageLimits& limits,
                         DeviceKind kind);

/// Embedding, final norm, head and their buffers.
StageMemory root_memory(const ModelConfig& config, const StageLimits& limits, DeviceKind kind);

}  // namespace convoy
