// Writes complete, random, tiny Qwen3.5 checkpoints, and lets tests damage them before they are
// written. Knows nothing of shared/model: names and shapes are spelled out again here, so that the
// reader is compared with something.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace convoy::testing {

/// A directory under the system's temporary one, removed with everything in it when destroyed.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct TinyCheckpointOptions {
  std::string layers = "llfl";  ///< one letter per layer: l linear attention, f full attention
  int vocab_size = 64;
  int hidden_size = 32;
  int intermediate_size = 48;
  int num_attention_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int linear_key_heads = 1;
  int linear_value_heads = 2;
  int linear_key_dim = 16;
  int linear_value_dim = 16;
  int max_position_embeddings = 4096;
  double partial_rotary_factor = 0.25;
  std::string mrope_section = "[1, 1, 0]";  ///< adds up to head_dim * partial_rotary_factor / 2
  bool tied = false;                        ///< no lm_head
  bool nested = false;  ///< text_config inside, prefix "model.language_model." instead of "model."
  bool old_rope_keys = false;  ///< rope_scaling and numbers beside it instead of rope_parameters
  bool f32_norms = false;      ///< norms, A_log and dt_bias as F32 instead of BF16
  bool extras = false;         ///< adds mtp., model.visual. and unknown tensors
  int shards = 1;              ///< more than 1: model-0000k-of-0000n.safetensors and an index
  uint64_t seed = 1;           ///< the same seed gives the same bytes everywhere
};

struct TensorImage {
  std::string name;
  std::string dtype;  ///< as in the header
  std::vector<int64_t> shape;
  std::string bytes;
};

/// Everything that will be written; change what should be wrong. Values of the maps are JSON text.
struct CheckpointImage {
  bool nested = false;
  std::map<std::string, std::string> outer_config;  ///< keys beside text_config
  std::map<std::string, std::string> text_config;
  std::string generation_config;     ///< empty: no such file
  std::vector<TensorImage> tensors;  ///< dealt to shards in this order, contiguously
  int shards = 1;
  /// Changes to the index's weight_map: tensor name to shard, an empty shard removes the entry.
  std::map<std::string, std::string> index_changes;

  /// The tensor with this full name; ends the process if there is none.
  TensorImage& tensor(const std::string& name);
  void erase_tensor(const std::string& name);
};

CheckpointImage make_tiny_checkpoint(const TinyCheckpointOptions& options);

/// Writes into `directory` (created if needed).
void write_checkpoint(const CheckpointImage& image, const std::filesystem::path& directory);

/// Both in one.
void write_tiny_checkpoint(const TinyCheckpointOptions& options,
                           const std::filesystem::path& directory);

/// config.json of the image.
std::string config_json(const CheckpointImage& image);
/// The JSON part of a safetensors header for these tensors, packed in order.
std::string header_json(const std::vector<TensorImage>& tensors);
/// A safetensors file from its parts, right or wrong: length (8 bytes), header, data.
std::string safetensors_bytes(const std::string& header, const std::string& data);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// The file name of shard `index` (from 0) of `shards`.
std::string shard_name(int index, int shards);

}  // namespace convoy::testing
