#include "tests/unit/model/checkpoint_writer.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>

namespace convoy::testing {
namespace {

/// splitmix64, and a normal deviate from it: the same on every platform, unlike <random>'s
/// distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  /// In [0, 1).
  double uniform() {
    state_ += 0x9E3779B97F4A7C15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
    return static_cast<double>(z >> 11U) * 0x1.0p-53;
  }
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum - 6.0;
  }

 private:
  uint64_t state_;
};

uint16_t to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

std::string encode(double value, bool f32) {
  const auto narrow = static_cast<float>(value);
  std::string bytes(f32 ? 4 : 2, '\0');
  if (f32) {
    std::memcpy(bytes.data(), &narrow, 4);
  } else {
    const uint16_t half = to_bf16(narrow);
    std::memcpy(bytes.data(), &half, 2);
  }
  return bytes;
}

class Maker {
 public:
  Maker(const TinyCheckpointOptions& options, CheckpointImage& image)
      : options_(options), image_(image), random_(options.seed) {}

  void make_tensors() {
    const int64_t hidden = options_.hidden_size;
    const std::string prefix = options_.nested ? "model.language_model." : "model.";
    weight(prefix + "embed_tokens.weight", options_.vocab_size, hidden);
    for (std::size_t i = 0; i < options_.layers.size(); ++i) {
      make_layer(prefix + "layers." + std::to_string(i) + ".", options_.layers[i] == 'f');
    }
    norm(prefix + "norm.weight", hidden, 0.0);
    if (!options_.tied) weight("lm_head.weight", options_.vocab_size, hidden);
    if (options_.extras) make_extras();
  }

 private:
  void add(const std::string& name, bool f32, const std::vector<int64_t>& shape,
           const std::function<double()>& value) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) bytes += encode(value(), f32);
    image_.tensors.push_back({name, f32 ? "F32" : "BF16", shape, bytes});
  }
  /// Scaled so that outputs have the size of inputs.
  void weight(const std::string& name, int64_t out, int64_t in) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(in));
    add(name, false, {out, in}, [&] { return random_.normal() * scale; });
  }
  void norm(const std::string& name, int64_t size, double centre) {
    add(name, options_.f32_norms, {size}, [&] { return centre + 0.1 * random_.normal(); });
  }

  void make_layer(const std::string& prefix, bool full) {
    const int64_t hidden = options_.hidden_size;
    const int64_t inner = options_.intermediate_size;
    norm(prefix + "input_layernorm.weight", hidden, 0.0);
    if (full) {
      make_full_attention(prefix + "self_attn.");
    } else {
      make_linear_attention(prefix + "linear_attn.");
    }
    norm(prefix + "post_attention_layernorm.weight", hidden, 0.0);
    weight(prefix + "mlp.gate_proj.weight", inner, hidden);
    weight(prefix + "mlp.up_proj.weight", inner, hidden);
    weight(prefix + "mlp.down_proj.weight", hidden, inner);
  }

  void make_full_attention(const std::string& prefix) {
    const int64_t hidden = options_.hidden_size;
    const int64_t head = options_.head_dim;
    weight(prefix + "q_proj.weight", options_.num_attention_heads * head * 2, hidden);
    weight(prefix + "k_proj.weight", options_.num_kv_heads * head, hidden);
    weight(prefix + "v_proj.weight", options_.num_kv_heads * head, hidden);
    weight(prefix + "o_proj.weight", hidden, options_.num_attention_heads * head);
    norm(prefix + "q_norm.weight", head, 0.0);
    norm(prefix + "k_norm.weight", head, 0.0);
  }

  void make_linear_attention(const std::string& prefix) {
    const int64_t hidden = options_.hidden_size;
    const int64_t heads = options_.linear_value_heads;
    const int64_t keys = static_cast<int64_t>(options_.linear_key_heads) * options_.linear_key_dim;
    const int64_t values = heads * options_.linear_value_dim;
    weight(prefix + "in_proj_qkv.weight", keys + keys + values, hidden);
    weight(prefix + "in_proj_z.weight", values, hidden);
    weight(prefix + "in_proj_b.weight", heads, hidden);
    weight(prefix + "in_proj_a.weight", heads, hidden);
    add(prefix + "conv1d.weight", false, {keys + keys + values, 1, 4},
        [&] { return 0.5 * random_.normal(); });
    // Decay rates from slow to fast, as trained models have.
    add(prefix + "A_log", options_.f32_norms, {heads},
        [&] { return std::log(1.0 + 15.0 * random_.uniform()); });
    add(prefix + "dt_bias", options_.f32_norms, {heads},
        [&] { return -4.0 + 3.0 * random_.uniform(); });
    norm(prefix + "norm.weight", options_.linear_value_dim, 1.0);
    weight(prefix + "out_proj.weight", hidden, values);
  }

  void make_extras() {
    const int64_t hidden = options_.hidden_size;
    weight("mtp.fc.weight", hidden, 2 * hidden);
    weight("model.visual.merger.norm.weight", 1, hidden);
    image_.tensors.push_back({"something.else", "I64", {2}, std::string(16, '\1')});
    image_.tensors.push_back({"something.empty", "U8", {0, 3}, ""});
  }

  const TinyCheckpointOptions& options_;
  CheckpointImage& image_;
  Random random_;
};

std::string join_object(const std::map<std::string, std::string>& fields) {
  std::string text = "{";
  for (const auto& [key, value] : fields) {
    if (text.size() > 1) text += ",";
    text.append("\n  \"").append(key).append("\": ").append(value);
  }
  return text + "\n}";
}

std::string number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

void make_config(const TinyCheckpointOptions& options, CheckpointImage& image) {
  auto& text = image.text_config;
  const auto put = [&](const std::string& key, int value) { text[key] = std::to_string(value); };
  put("vocab_size", options.vocab_size);
  put("hidden_size", options.hidden_size);
  put("intermediate_size", options.intermediate_size);
  put("num_hidden_layers", static_cast<int>(options.layers.size()));
  put("num_attention_heads", options.num_attention_heads);
  put("num_key_value_heads", options.num_kv_heads);
  put("head_dim", options.head_dim);
  put("linear_num_key_heads", options.linear_key_heads);
  put("linear_num_value_heads", options.linear_value_heads);
  put("linear_key_head_dim", options.linear_key_dim);
  put("linear_value_head_dim", options.linear_value_dim);
  put("linear_conv_kernel_dim", 4);
  put("max_position_embeddings", options.max_position_embeddings);
  put("eos_token_id", options.vocab_size - 1);
  text["rms_norm_eps"] = "1e-06";
  text["hidden_act"] = "\"silu\"";
  text["model_type"] = "\"qwen3_5_text\"";
  std::string types;
  for (const char c : options.layers) {
    types.append(types.empty() ? "[" : ", ");
    types.append(c == 'f' ? "\"full_attention\"" : "\"linear_attention\"");
  }
  text["layer_types"] = types + "]";
  const std::string factor = number(options.partial_rotary_factor);
  if (options.old_rope_keys) {
    text["rope_theta"] = "10000000";
    text["partial_rotary_factor"] = factor;
    text["rope_scaling"] = R"({"type": "mrope", "mrope_interleaved": true, "mrope_section": )" +
                           options.mrope_section + "}";
  } else {
    text["rope_parameters"] =
        R"({"rope_type": "default", "rope_theta": 10000000.0, "mrope_interleaved": true, )"
        R"("partial_rotary_factor": )" +
        factor + R"(, "mrope_section": )" + options.mrope_section + "}";
  }
  image.outer_config["tie_word_embeddings"] = options.tied ? "true" : "false";
  if (options.nested) image.outer_config["model_type"] = "\"qwen3_5\"";
  image.generation_config = "{\"eos_token_id\": [" + std::to_string(options.vocab_size - 2) + ", " +
                            std::to_string(options.vocab_size - 1) + "]}";
}

std::string index_json(const std::map<std::string, std::string>& shard_of) {
  std::map<std::string, std::string> quoted;
  for (const auto& [name, shard] : shard_of)
    quoted[name] = std::string("\"").append(shard).append("\"");
  return "{\"metadata\": {}, \"weight_map\": " + join_object(quoted) + "}";
}

std::string safetensors_of(const std::vector<TensorImage>& tensors) {
  std::string data;
  for (const TensorImage& tensor : tensors) data += tensor.bytes;
  return safetensors_bytes(header_json(tensors), data);
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "convoy-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp: " + pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

TensorImage& CheckpointImage::tensor(const std::string& name) {
  for (TensorImage& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  std::fprintf(stderr, "no tensor %s in the image\n", name.c_str());
  std::abort();
}

void CheckpointImage::erase_tensor(const std::string& name) {
  const TensorImage* found = &tensor(name);
  tensors.erase(tensors.begin() + (found - tensors.data()));
}

CheckpointImage make_tiny_checkpoint(const TinyCheckpointOptions& options) {
  CheckpointImage image;
  image.nested = options.nested;
  image.shards = options.shards;
  make_config(options, image);
  Maker(options, image).make_tensors();
  return image;
}

std::string config_json(const CheckpointImage& image) {
  std::map<std::string, std::string> outer = image.outer_config;
  if (image.nested) {
    outer["text_config"] = join_object(image.text_config);
  } else {
    outer.insert(image.text_config.begin(), image.text_config.end());
  }
  return join_object(outer);
}

std::string header_json(const std::vector<TensorImage>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::size_t offset = 0;
  for (const TensorImage& tensor : tensors) {
    std::string shape;
    for (const int64_t extent : tensor.shape) {
      if (!shape.empty()) shape += ',';
      shape.append(std::to_string(extent));
    }
    const std::size_t end = offset + tensor.bytes.size();
    text += ",\"" + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":[)" + shape +
            R"(],"data_offsets":[)" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  return bytes + header + data;
}

std::string shard_name(int index, int shards) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", index + 1, shards);
  return name;
}

void write_checkpoint(const CheckpointImage& image, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  write_file(directory / "config.json", config_json(image));
  if (!image.generation_config.empty()) {
    write_file(directory / "generation_config.json", image.generation_config);
  }
  if (image.shards == 1) {
    write_file(directory / "model.safetensors", safetensors_of(image.tensors));
    return;
  }
  std::map<std::string, std::string> shard_of;
  const std::size_t shards = static_cast<std::size_t>(image.shards);
  for (std::size_t k = 0; k < shards; ++k) {
    const auto begin = static_cast<std::ptrdiff_t>(image.tensors.size() * k / shards);
    const auto end = static_cast<std::ptrdiff_t>(image.tensors.size() * (k + 1) / shards);
    const std::vector<TensorImage> part(image.tensors.begin() + begin, image.tensors.begin() + end);
    const std::string name = shard_name(static_cast<int>(k), image.shards);
    write_file(directory / name, safetensors_of(part));
    for (const TensorImage& tensor : part) shard_of[tensor.name] = name;
  }
  for (const auto& [name, shard] : image.index_changes) {
    if (shard.empty()) {
      shard_of.erase(name);
    } else {
      shard_of[name] = shard;
    }
  }
  write_file(directory / "model.safetensors.index.json", index_json(shard_of));
}

void write_tiny_checkpoint(const TinyCheckpointOptions& options,
                           const std::filesystem::path& directory) {
  write_checkpoint(make_tiny_checkpoint(options), directory);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace convoy::testing
