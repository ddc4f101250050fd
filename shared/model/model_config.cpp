#include "shared/model/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <optional>

#include "base/exit_code.h"
#include "shared/model/json_text.h"
#include "shared/model/regular_file.h"

namespace convoy {
namespace json = boost::json;
namespace {

constexpr std::array<std::string_view, 2> kModelTypes = {"qwen3_5", "qwen3_5_text"};
constexpr uint64_t kConfigLimitBytes = 16U << 20U;

// Far above any published model, far below what could overflow later.
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxHidden = 1 << 16;
constexpr int kMaxIntermediate = 1 << 18;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 256;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxLinearHeadDim = 512;
constexpr int kMaxPositions =
    1 << 24;  // the last position that f32 angles can tell from its neighbours
constexpr int kDimMultiple = 16;

/// A required size that is a multiple of 16, as the kernels' loops are.
int dim(const JsonFields& fields, std::string_view key, int maximum) {
  const int value = fields.integer(key, kDimMultiple, maximum);
  if (value % kDimMultiple != 0) {
    fields.refuse(key, *fields.find(key),
                  fmt::format("a multiple of {} in {}..{}", kDimMultiple, kDimMultiple, maximum));
  }
  return value;
}

int dim_or(const JsonFields& fields, std::string_view key, int otherwise, int maximum) {
  return fields.find(key) == nullptr ? otherwise : dim(fields, key, maximum);
}

void require_divisible(const JsonFields& fields, std::string_view many_key, int many,
                       std::string_view few_key, int few) {
  if (many % few == 0) return;
  throw StartError(fmt::format("{}: {} is {}; allowed: a multiple of {}, which is {}",
                               fields.where(), many_key, many, few_key, few));
}

void check_model_type(const JsonFields& fields, const std::string& model_type) {
  if (std::find(kModelTypes.begin(), kModelTypes.end(), model_type) != kModelTypes.end()) return;
  throw StartError(fmt::format("{}: model_type {} is not supported; supported: {}", fields.where(),
                               shown_name(model_type), fmt::join(kModelTypes, ", ")));
}

void check_not_quantised(const JsonFields& fields) {
  const json::value* value = fields.find("quantization_config");
  if (value == nullptr) return;
  const JsonFields quantisation(*value, fields.where() + ": quantization_config");
  const std::string method = quantisation.find_string("quant_method").value_or("not named");
  throw StartError(
      fmt::format("{}: quantization_config (quant_method {}): quantised checkpoints are not "
                  "supported; allowed: BF16 weights",
                  fields.where(), shown_name(method)));
}

/// Variants of the architecture that no published checkpoint of the supported types has.
void check_fixed_choices(const JsonFields& text) {
  if (text.find_bool("attention_bias").value_or(false)) {
    text.refuse("attention_bias", *text.find("attention_bias"), "false");
  }
  if (!text.find_bool("attn_output_gate").value_or(true)) {
    text.refuse("attn_output_gate", *text.find("attn_output_gate"), "true");
  }
  if (text.find_string("hidden_act").value_or("silu") != "silu") {
    text.refuse("hidden_act", *text.find("hidden_act"), "\"silu\"");
  }
}

std::vector<LayerType> read_layer_types(const JsonFields& text, int num_layers) {
  const int interval = text.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  std::vector<LayerType> types;
  const json::value* list = text.find("layer_types");
  if (list == nullptr) {
    for (int layer = 0; layer < num_layers; ++layer) {
      types.push_back((layer + 1) % interval == 0 ? LayerType::full_attention
                                                  : LayerType::linear_attention);
    }
    return types;
  }
  if (!list->is_array()) text.refuse("layer_types", *list, "a list with one name per layer");
  if (list->get_array().size() != static_cast<std::size_t>(num_layers)) {
    throw StartError(fmt::format("{}: layer_types has {} entries; num_hidden_layers is {}",
                                 text.where(), list->get_array().size(), num_layers));
  }
  for (const json::value& entry : list->get_array()) {
    const auto key = fmt::format("layer_types[{}]", types.size());
    if (entry == "linear_attention") {
      types.push_back(LayerType::linear_attention);
    } else if (entry == "full_attention") {
      types.push_back(LayerType::full_attention);
    } else {
      text.refuse(key, entry, "\"linear_attention\", \"full_attention\"");
    }
  }
  return types;
}

void check_rope_type(const JsonFields& rope) {
  const std::string type = rope.find_string("rope_type").value_or("default");
  if (type != "default") rope.refuse("rope_type", *rope.find("rope_type"), "\"default\"");
  // "type" is the older spelling, where "mrope" meant the default frequencies with mrope_section.
  const std::string old_type = rope.find_string("type").value_or("default");
  if (old_type != "default" && old_type != "mrope") {
    rope.refuse("type", *rope.find("type"), "\"default\", \"mrope\"");
  }
  if (!rope.find_bool("mrope_interleaved").value_or(true)) {
    rope.refuse("mrope_interleaved", *rope.find("mrope_interleaved"), "true");
  }
}

/// Axis a of height (1) and width (2) takes frequencies a, a+3, ... below 3 * section[a]; time
/// takes the rest.
std::vector<int32_t> read_rope_axis(const std::optional<JsonFields>& rope, int rotary_dim) {
  const int pairs = rotary_dim / 2;
  std::array<int64_t, 3> section = {11, 11, 10};
  const json::value* list = rope ? rope->find("mrope_section") : nullptr;
  if (list != nullptr) {
    const std::string allowed =
        fmt::format("three counts that add up to half the rotary dims, {}", pairs);
    if (!list->is_array() || list->get_array().size() != section.size()) {
      rope->refuse("mrope_section", *list, allowed);
    }
    int64_t sum = 0;
    for (std::size_t a = 0; a < section.size(); ++a) {
      const std::optional<int64_t> count = integer_in(list->get_array()[a], 0, kMaxHeadDim);
      if (!count) rope->refuse("mrope_section", *list, allowed);
      section[a] = *count;
      sum += *count;
    }
    if (sum != pairs) rope->refuse("mrope_section", *list, allowed);
  }
  std::vector<int32_t> axis(static_cast<std::size_t>(pairs), 0);
  for (int i = 0; i < pairs; ++i) {
    const auto a = static_cast<std::size_t>(i % 3);
    if (a != 0 && i < 3 * section[a]) axis[static_cast<std::size_t>(i)] = static_cast<int32_t>(a);
  }
  return axis;
}

void read_rope(const JsonFields& text, ModelConfig& config) {
  // New files have rope_parameters; older ones rope_scaling (or nothing) with the numbers beside
  // it.
  std::optional<JsonFields> rope = text.find_object("rope_parameters");
  if (!rope) rope = text.find_object("rope_scaling");
  if (rope) check_rope_type(*rope);
  const JsonFields& first = rope ? *rope : text;
  const auto number = [&](std::string_view key) {
    const std::optional<double> value = first.find_number(key);
    return value ? value : text.find_number(key);
  };

  const std::optional<double> theta = number("rope_theta");
  if (!theta) throw StartError(fmt::format("{}: rope_theta is missing", first.where()));
  if (!(*theta >= 1.0 && *theta <= 1e15)) {
    throw StartError(fmt::format("{}: rope_theta is {}; allowed: 1..1e15", first.where(), *theta));
  }
  config.rope_theta = *theta;

  const double factor = number("partial_rotary_factor").value_or(0.25);
  if (!(factor > 0.0 && factor <= 1.0)) {
    throw StartError(fmt::format("{}: partial_rotary_factor is {}; allowed: above 0 and at most 1",
                                 first.where(), factor));
  }
  const double rotary = factor * config.head_dim;
  const double rounded = std::round(rotary);
  // The parser may be off by the last bit of the factor.
  if (std::fabs(rotary - rounded) > 1e-6 || rounded < 2 || std::fmod(rounded, 2.0) != 0.0) {
    throw StartError(
        fmt::format("{}: partial_rotary_factor {} of head_dim {} is {} rotary dims; "
                    "allowed: an even number of at least 2",
                    first.where(), factor, config.head_dim, rotary));
  }
  config.rotary_dim = static_cast<int>(rounded);
  config.rope_axis = read_rope_axis(rope, config.rotary_dim);
}

void add_stop_ids(const JsonFields& fields, ModelConfig& config) {
  const json::value* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const json::value& entry) {
    const std::optional<int64_t> id = integer_in(entry, 0, config.vocab_size - 1);
    if (!id) {
      fields.refuse("eos_token_id", entry,
                    fmt::format("token ids in 0..{} (vocab_size - 1)", config.vocab_size - 1));
    }
    const auto stop = static_cast<int32_t>(*id);
    auto& ids = config.stop_token_ids;
    if (std::find(ids.begin(), ids.end(), stop) == ids.end()) ids.push_back(stop);
  };
  if (!value->is_array()) {
    add(*value);
    return;
  }
  if (value->get_array().size() > 1024) {
    throw StartError(fmt::format("{}: eos_token_id has {} entries; allowed: at most 1024",
                                 fields.where(), value->get_array().size()));
  }
  for (const json::value& entry : value->get_array()) add(entry);
}

void read_sizes(const JsonFields& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = dim(text, "hidden_size", kMaxHidden);
  config.intermediate_size = dim(text, "intermediate_size", kMaxIntermediate);
  config.num_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = text.integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = text.integer("num_key_value_heads", 1, kMaxHeads);
  config.head_dim = dim_or(text, "head_dim", 256, kMaxHeadDim);
  require_divisible(text, "num_attention_heads", config.num_attention_heads, "num_key_value_heads",
                    config.num_kv_heads);
  config.layer_types = read_layer_types(text, config.num_layers);

  config.linear_key_heads = text.integer("linear_num_key_heads", 1, kMaxHeads);
  config.linear_value_heads = text.integer("linear_num_value_heads", 1, kMaxHeads);
  config.linear_key_dim = dim_or(text, "linear_key_head_dim", 128, kMaxLinearHeadDim);
  config.linear_value_dim = dim_or(text, "linear_value_head_dim", 128, kMaxLinearHeadDim);
  require_divisible(text, "linear_num_value_heads", config.linear_value_heads,
                    "linear_num_key_heads", config.linear_key_heads);
  config.conv_kernel = text.integer_or("linear_conv_kernel_dim", 4, 1, 1024);
  if (config.conv_kernel != 4) {
    text.refuse("linear_conv_kernel_dim", *text.find("linear_conv_kernel_dim"), "4");
  }
  config.max_position_embeddings =
      text.integer_or("max_position_embeddings", 32768, 1, kMaxPositions);
  const double eps = text.find_number("rms_norm_eps").value_or(1e-6);
  if (!(eps >= 1e-12 && eps <= 1e-1)) {
    text.refuse("rms_norm_eps", *text.find("rms_norm_eps"), "1e-12..0.1");
  }
  config.rms_norm_eps = static_cast<float>(eps);
}

void check_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(directory, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw StartError(
        fmt::format("{}: no such directory; a Hugging Face model directory on this "
                    "machine is expected, nothing is downloaded",
                    directory.string()));
  }
  if (std::filesystem::is_directory(status)) return;
  if (error) throw StartError(fmt::format("{}: {}", directory.string(), error.message()));
  const std::filesystem::path parent = directory.parent_path();
  throw StartError(
      fmt::format("{}: not a directory; give the directory that holds config.json and "
                  "the .safetensors files (here perhaps {})",
                  directory.string(), parent.empty() ? "." : parent.string()));
}

}  // namespace

ModelConfig parse_model_config(std::string_view text_of_file, const std::string& where,
                               std::string_view generation_text,
                               const std::string& generation_where) {
  const json::value document = parse_json(text_of_file, where);
  const JsonFields outer(document, where);
  ModelConfig config;
  const std::optional<std::string> model_type = outer.find_string("model_type");
  if (!model_type) throw StartError(fmt::format("{}: model_type is missing", where));
  check_model_type(outer, *model_type);
  config.model_type = *model_type;
  check_not_quantised(outer);

  // Multimodal checkpoints nest the text model's keys, text-only exports have them at the top.
  const std::optional<JsonFields> nested = outer.find_object("text_config");
  const JsonFields& text = nested ? *nested : outer;
  if (nested) {
    check_model_type(*nested, nested->find_string("model_type").value_or("qwen3_5_text"));
    check_not_quantised(*nested);
  }
  check_fixed_choices(text);
  read_sizes(text, config);
  read_rope(text, config);
  const std::optional<bool> tied = outer.find_bool("tie_word_embeddings");
  config.tie_word_embeddings = tied ? *tied : text.find_bool("tie_word_embeddings").value_or(false);

  if (!generation_text.empty()) {
    const json::value generation = parse_json(generation_text, generation_where);
    add_stop_ids(JsonFields(generation, generation_where), config);
  }
  add_stop_ids(outer, config);
  if (nested) add_stop_ids(*nested, config);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  check_directory(directory);
  const std::filesystem::path path = directory / "config.json";
  const std::string text = read_text_file(path, kConfigLimitBytes);
  const std::filesystem::path generation_path = directory / "generation_config.json";
  std::string generation_text;
  std::error_code error;
  if (std::filesystem::exists(generation_path, error)) {
    generation_text = read_text_file(generation_path, kConfigLimitBytes);
    if (generation_text.empty()) {
      throw StartError(fmt::format("{}: empty; JSON expected", generation_path.string()));
    }
  }
  return parse_model_config(text, path.string(), generation_text, generation_path.string());
}

}  // namespace convoy
