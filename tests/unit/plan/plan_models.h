// The two models whose plans the tests know by hand.
#pragma once

#include <filesystem>

#include "shared/model/model_config.h"

namespace convoy {

inline ModelConfig standin_config() {
  return read_model_config(std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/standin");
}

/// The shape of the 27B checkpoints (model-reference 1.3): 64 layers, every fourth is full
/// attention.
inline ModelConfig config_27b() {
  ModelConfig c;
  c.vocab_size = 248320;
  c.hidden_size = 5120;
  c.intermediate_size = 17408;
  c.num_layers = 64;
  c.num_attention_heads = 24;
  c.num_kv_heads = 4;
  c.head_dim = 256;
  for (int layer = 0; layer < c.num_layers; ++layer) {
    c.layer_types.push_back(layer % 4 == 3 ? LayerType::full_attention
                                           : LayerType::linear_attention);
  }
  c.linear_key_heads = 16;
  c.linear_value_heads = 48;
  c.linear_key_dim = 128;
  c.linear_value_dim = 128;
  c.conv_kernel = 4;
  c.max_position_embeddings = 262144;
  c.rotary_dim = 64;
  return c;
}

}  // namespace convoy
