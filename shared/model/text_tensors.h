// The tensors a text model consists of: the whole architecture on one page. Shapes are [out, in],
// fastest axis last. Source: model-reference sections 3 to 6 (transformers, modeling_qwen3_5.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/model/model_config.h"

namespace convoy {

struct RequiredTensor {
  std::string
      name;  ///< relative to the text model: "layers.3.mlp.up_proj.weight", "lm_head.weight"
  std::vector<int64_t> shape;
  bool f32_allowed = false;  ///< norms, A_log, dt_bias and the convolution are stored as BF16 or
                             ///< F32; the others as BF16
};

/// Everything of one layer.
std::vector<RequiredTensor> layer_tensors(const ModelConfig& config, int layer);

/// Embedding, final norm and, unless it is tied, the head.
std::vector<RequiredTensor> root_tensors(const ModelConfig& config);

}  // namespace convoy
