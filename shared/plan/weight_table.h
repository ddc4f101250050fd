// The weights of a layer as they lie in device memory: which stored tensors make them, in which
// order, in which form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "shared/model/model_config.h"

namespace convoy {

/// How a weight lies in device memory.
enum class WeightForm {
  linear,  ///< bf16 [out, in] in the device's packed layout
  vector,  ///< f32, as many values as stored
  table,   ///< bf16 [rows, columns] row-major, as stored
};

/// One weight in device memory. A fused linear is made of several stored tensors, rows one after
/// another.
struct WeightSpec {
  std::string role;  ///< "qkv", "out", "gate_up", "input_norm", …: unique within its layer
  std::vector<std::string>
      tensors;  ///< stored names without the layer prefix, e.g. "self_attn.q_proj.weight"
  WeightForm form = WeightForm::vector;
  int out_features = 0;  ///< rows in total; vectors: number of values
  int in_features = 0;   ///< columns; vectors: 1
};

/// The weights of layer `layer`; names are relative to "layers.<layer>.".
std::vector<WeightSpec> layer_weight_table(const ModelConfig& config, int layer);

/// Embedding, final norm and head, which rank 0 owns. A tied head has no table of its own: the
/// embedding gathers from it.
std::vector<WeightSpec> root_weight_table(const ModelConfig& config);

/// Bytes of one weight in device memory.
uint64_t weight_bytes(const WeightSpec& spec, DeviceKind kind);

}  // namespace convoy
