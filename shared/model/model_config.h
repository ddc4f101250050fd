// The part of a checkpoint's config.json that the text model needs, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

enum class LayerType { linear_attention, full_attention };

/// Every value is within limits that keep rows and channels of each tensor inside an int and the
/// bytes of the model inside an int64, so nothing that is computed from them overflows.
struct ModelConfig {
  std::string model_type;  ///< as the file says: qwen3_5, qwen3_5_text
  int vocab_size = 0;      ///< rows of the embedding; at least the tokenizer's ids
  int hidden_size = 0;     ///< a multiple of 16
  int intermediate_size = 0;
  int num_layers = 0;
  int num_attention_heads = 0;  ///< a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim = 0;                    ///< a multiple of 16
  std::vector<LayerType> layer_types;  ///< one per layer
  int linear_key_heads = 0;
  int linear_value_heads = 0;  ///< a multiple of linear_key_heads
  int linear_key_dim = 0;      ///< per head, a multiple of 16
  int linear_value_dim = 0;    ///< per head, a multiple of 16
  int conv_kernel = 0;         ///< always 4
  float rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  int max_position_embeddings = 0;
  double rope_theta = 0;
  int rotary_dim = 0;  ///< head_dim * partial_rotary_factor, even
  std::vector<int32_t>
      rope_axis;  ///< [rotary_dim/2]: 0 time, 1 height, 2 width, from mrope_section (interleaved)
  /// generation_config.json's eos ids first, then config.json's, without repetition; may be empty.
  std::vector<int32_t> stop_token_ids;

  // Channels of the GDN projections: keys (and queries), values, and what the convolution runs
  // over.
  int linear_key_channels() const { return linear_key_heads * linear_key_dim; }
  int linear_value_channels() const { return linear_value_heads * linear_value_dim; }
  int conv_channels() const { return 2 * linear_key_channels() + linear_value_channels(); }
};

/// Reads config.json and, if there is one, generation_config.json. Throws StartError naming file,
/// key, value and what is allowed: a directory that is none, JSON that is not valid, a model that
/// is not supported, a value out of range.
ModelConfig read_model_config(const std::filesystem::path& directory);

/// The same from texts. `where` and `generation_where` name them in messages; an empty
/// `generation_text` means no such file. Source of keys and defaults: transformers,
/// configuration_qwen3_5.py.
ModelConfig parse_model_config(std::string_view text, const std::string& where,
                               std::string_view generation_text,
                               const std::string& generation_where);

}  // namespace convoy
