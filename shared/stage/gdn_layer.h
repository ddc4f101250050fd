// Gated DeltaNet: short convolution, gated delta rule, gated norm.
// Source: Hugging Face transformers, Qwen3_5GatedDeltaNet.
#pragma once

#include "kernels/device/device.h"
#include "kernels/ops/op_set.h"
#include "shared/model/model_config.h"
#include "shared/stage/weights.h"
#include "shared/stage/workspace.h"

namespace convoy {

/// Owns the recurrent and convolution state slots of one layer. The residual in the workspace is
/// updated in place.
class GdnLayer {
 public:
  GdnLayer(Device& device, const ModelConfig& config, int layer, int state_slots);
  void run(Device& device, Stream& stream, const WeightSet& weights, const Workspace& work,
           const StepView& step) const;
  uint64_t state_bytes() const { return recurrent_.bytes() + conv_.bytes(); }
  /// Device memory of one slot: gdn_state_bytes() and conv_state_bytes() of the plan.
  std::byte* recurrent_slot(int32_t slot) const;
  std::byte* conv_slot(int32_t slot) const;

 private:
  void mix_generated(Device& device, Stream& stream, const WeightSet& weights,
                     const Workspace& work, const StepView& step) const;
  void mix_prompt(Device& device, Stream& stream, const WeightSet& weights, const Workspace& work,
                  const StepView& step) const;

  ModelConfig config_;
  Buffer recurrent_;  // [slots, value_heads, key_dim, value_dim]
  Buffer conv_;       // [slots, 3, channels]
};

}  // namespace convoy
