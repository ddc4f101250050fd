#include "shared/model/model_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "tests/unit/model/checkpoint_writer.h"
#include "tests/unit/model/refusal.h"

namespace convoy::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig parse(const CheckpointImage& image) {
  return parse_model_config(config_json(image), "dir/config.json", image.generation_config,
                            "dir/generation_config.json");
}

std::string refused(const CheckpointImage& image) {
  return refusal([&] { parse(image); });
}

/// Refusal of the tiny config with one key changed, in both layouts.
std::string refused_with(const std::string& key, const std::string& value) {
  std::string message;
  for (const bool nested : {false, true}) {
    CheckpointImage image = make_tiny_checkpoint({.nested = nested});
    image.text_config[key] = value;
    message = refused(image);
    EXPECT_THAT(message, HasSubstr("dir/config.json"));
  }
  return message;
}

ModelConfig parsed_with(const std::string& key, const std::string& value) {
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config[key] = value;
  return parse(image);
}

// ---- what is read ----

TEST(ModelConfig, ReadsEveryValueOfTheStandInModel) {
  const ModelConfig config =
      read_model_config(std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/standin");
  EXPECT_EQ(config.model_type, "qwen3_5_text");
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_EQ(config.hidden_size, 256);
  EXPECT_EQ(config.intermediate_size, 768);
  EXPECT_EQ(config.num_layers, 12);
  EXPECT_EQ(config.num_attention_heads, 2);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 256);
  ASSERT_EQ(config.layer_types.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(config.layer_types[i] == LayerType::full_attention, i % 4 == 3) << i;
  }
  EXPECT_EQ(config.linear_key_heads, 2);
  EXPECT_EQ(config.linear_value_heads, 4);
  EXPECT_EQ(config.linear_key_dim, 128);
  EXPECT_EQ(config.linear_value_dim, 128);
  EXPECT_EQ(config.conv_kernel, 4);
  EXPECT_EQ(config.conv_channels(), 1024);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 4096);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_THAT(config.stop_token_ids, ElementsAre(4079, 4077));
  ASSERT_EQ(config.rope_axis.size(), 32U);
  for (int i = 0; i < 32; ++i) {
    const int expected = i % 3 == 1 && i < 33 ? 1 : i % 3 == 2 && i < 30 ? 2 : 0;
    EXPECT_EQ(config.rope_axis[static_cast<std::size_t>(i)], expected) << i;
  }
}

TEST(ModelConfig, NestedAndFlatOldAndNewRopeKeysGiveTheSameConfig) {
  const ModelConfig flat = parse(make_tiny_checkpoint({}));
  EXPECT_EQ(flat.model_type, "qwen3_5_text");
  EXPECT_EQ(flat.rotary_dim, 4);
  EXPECT_THAT(flat.rope_axis, ElementsAre(0, 1));
  for (const bool nested : {false, true}) {
    for (const bool old_keys : {false, true}) {
      const ModelConfig other =
          parse(make_tiny_checkpoint({.nested = nested, .old_rope_keys = old_keys}));
      EXPECT_EQ(other.model_type, nested ? "qwen3_5" : "qwen3_5_text");
      EXPECT_EQ(other.hidden_size, flat.hidden_size);
      EXPECT_EQ(other.layer_types, flat.layer_types);
      EXPECT_EQ(other.rope_theta, 1e7);
      EXPECT_EQ(other.rotary_dim, flat.rotary_dim);
      EXPECT_EQ(other.rope_axis, flat.rope_axis);
      EXPECT_EQ(other.stop_token_ids, flat.stop_token_ids);
    }
  }
}

TEST(ModelConfig, RopeParametersWinOverOldKeysAndMissingOnesFallBackToThem) {
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config["rope_theta"] = "5";
  image.text_config["partial_rotary_factor"] = "0.5";
  EXPECT_EQ(parse(image).rope_theta, 1e7);
  EXPECT_EQ(parse(image).rotary_dim, 4);
  image.text_config["rope_parameters"] = R"({"rope_type": "default"})";
  EXPECT_EQ(parse(image).rope_theta, 5);
  EXPECT_EQ(parse(image).rotary_dim, 8);
}

TEST(ModelConfig, AQuarterOfTheHeadIsRotatedWhenNoFactorIsGiven) {
  CheckpointImage image = make_tiny_checkpoint({.head_dim = 256});
  image.text_config["rope_parameters"] = R"({"rope_theta": 1e6})";
  const ModelConfig config = parse(image);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(std::count(config.rope_axis.begin(), config.rope_axis.end(), 1), 11);
  EXPECT_EQ(std::count(config.rope_axis.begin(), config.rope_axis.end(), 2), 10);
}

TEST(ModelConfig, RopeAxisFollowsTheSectionNotTheRemainder) {
  const ModelConfig config =
      parse(make_tiny_checkpoint({.partial_rotary_factor = 1.0, .mrope_section = "[6, 1, 1]"}));
  EXPECT_THAT(config.rope_axis, ElementsAre(0, 1, 2, 0, 0, 0, 0, 0));
}

TEST(ModelConfig, LayerTypesComeFromTheIntervalWhenThereIsNoList) {
  CheckpointImage image = make_tiny_checkpoint({.layers = "llllll"});
  image.text_config["layer_types"] = "null";
  image.text_config["full_attention_interval"] = "3";
  const auto full = LayerType::full_attention;
  const auto linear = LayerType::linear_attention;
  EXPECT_THAT(parse(image).layer_types, ElementsAre(linear, linear, full, linear, linear, full));
  image.text_config.erase("layer_types");
  image.text_config.erase("full_attention_interval");
  EXPECT_THAT(parse(image).layer_types, ElementsAre(linear, linear, linear, full, linear, linear));
}

TEST(ModelConfig, TyingIsReadFromTheOuterObjectFirst) {
  CheckpointImage image = make_tiny_checkpoint({.nested = true});
  image.outer_config["tie_word_embeddings"] = "false";
  image.text_config["tie_word_embeddings"] = "true";
  EXPECT_FALSE(parse(image).tie_word_embeddings);
  image.outer_config.erase("tie_word_embeddings");
  EXPECT_TRUE(parse(image).tie_word_embeddings);
  image.text_config.erase("tie_word_embeddings");
  EXPECT_FALSE(parse(image).tie_word_embeddings);
}

TEST(ModelConfig, StopIdsComeFromGenerationConfigFirstWithoutRepetition) {
  CheckpointImage image = make_tiny_checkpoint({.nested = true});
  image.generation_config = R"({"eos_token_id": [7, 5, 7]})";
  image.text_config["eos_token_id"] = "5";
  image.outer_config["eos_token_id"] = "[9, 7]";
  EXPECT_THAT(parse(image).stop_token_ids, ElementsAre(7, 5, 9));
  image.generation_config = R"({"eos_token_id": 3})";
  EXPECT_THAT(parse(image).stop_token_ids, ElementsAre(3, 9, 7, 5));
  image.generation_config = "";
  EXPECT_THAT(parse(image).stop_token_ids, ElementsAre(9, 7, 5));
  image.outer_config.erase("eos_token_id");
  image.text_config["eos_token_id"] = "null";
  EXPECT_THAT(parse(image).stop_token_ids, ElementsAre());
}

TEST(ModelConfig, AbsentKeysTakeTheFamilysDefaults) {
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config["rope_parameters"] = R"({"rope_theta": 10000000})";
  for (const char* key :
       {"head_dim", "linear_key_head_dim", "linear_value_head_dim", "rms_norm_eps",
        "linear_conv_kernel_dim", "max_position_embeddings", "hidden_act"}) {
    image.text_config.erase(key);
  }
  const ModelConfig config = parse(image);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.linear_key_dim, 128);
  EXPECT_EQ(config.linear_value_dim, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.conv_kernel, 4);
  EXPECT_EQ(config.max_position_embeddings, 32768);
}

// ---- models that are not supported ----

TEST(ModelConfig, OtherModelTypesAreRefusedWithTheSupportedOnes) {
  for (const char* type : {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "qwen3", "llama", ""}) {
    CheckpointImage image = make_tiny_checkpoint({.nested = true});
    image.outer_config["model_type"] = std::string("\"") + type + "\"";
    EXPECT_THAT(refused(image), AllOf(HasSubstr(std::string("\"") + type + "\""),
                                      HasSubstr("supported: qwen3_5, qwen3_5_text")));
  }
  CheckpointImage inner = make_tiny_checkpoint({.nested = true});
  inner.text_config["model_type"] = "\"qwen3_5_moe_text\"";
  EXPECT_THAT(refused(inner), AllOf(HasSubstr("text_config"), HasSubstr("qwen3_5_moe_text")));
  CheckpointImage none = make_tiny_checkpoint({});
  none.text_config.erase("model_type");
  EXPECT_THAT(refused(none), HasSubstr("model_type is missing"));
}

TEST(ModelConfig, QuantisedCheckpointsAreRefusedByMethod) {
  for (const bool inside : {false, true}) {
    CheckpointImage image = make_tiny_checkpoint({.nested = true});
    (inside ? image.text_config : image.outer_config)["quantization_config"] =
        R"({"quant_method": "gptq", "bits": 4})";
    EXPECT_THAT(refused(image), AllOf(HasSubstr("quantization_config"), HasSubstr("\"gptq\"")));
  }
  EXPECT_EQ(parsed_with("quantization_config", "null").num_layers, 4);
}

TEST(ModelConfig, RopeScalingsAreRefusedByName) {
  for (const char* type : {"yarn", "linear", "dynamic", "longrope", "llama3"}) {
    const std::string name = std::string("\"") + type + "\"";
    EXPECT_THAT(
        refused_with("rope_parameters", R"({"rope_theta": 1e7, "rope_type": )" + name + "}"),
        AllOf(HasSubstr("rope_type"), HasSubstr(name), HasSubstr("\"default\"")));
    CheckpointImage old = make_tiny_checkpoint({.old_rope_keys = true});
    old.text_config["rope_scaling"] = R"({"type": )" + name + "}";
    EXPECT_THAT(refused(old), AllOf(HasSubstr("rope_scaling"), HasSubstr(name)));
  }
  EXPECT_THAT(refused_with("rope_parameters", R"({"rope_theta": 1e7, "mrope_interleaved": false})"),
              HasSubstr("mrope_interleaved is false"));
}

TEST(ModelConfig, VariantsOfTheArchitectureAreRefused) {
  EXPECT_THAT(refused_with("attention_bias", "true"), HasSubstr("attention_bias is true"));
  EXPECT_THAT(refused_with("attn_output_gate", "false"), HasSubstr("attn_output_gate is false"));
  EXPECT_THAT(refused_with("hidden_act", "\"gelu\""), HasSubstr("hidden_act is \"gelu\""));
}

// ---- values out of range ----

TEST(ModelConfig, EverySizeIsRequiredWholeAndWithinLimits) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "linear_num_key_heads",
                          "linear_num_value_heads"}) {
    CheckpointImage image = make_tiny_checkpoint({});
    image.text_config.erase(key);
    EXPECT_THAT(refused(image), HasSubstr(std::string(key) + " is missing"));
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "max_position_embeddings"}) {
    for (const char* value : {"0", "-16", "2147483648", "4294967312", "18446744073709551615",
                              "1e300", "32.0", "\"32\"", "true", "[32]", "{}"}) {
      EXPECT_THAT(refused_with(key, value), AllOf(HasSubstr(key), HasSubstr("allowed")))
          << key << " " << value;
    }
  }
}

TEST(ModelConfig, SizesThatKernelsCannotCutAreRefusedWithTheValue) {
  for (const char* key : {"hidden_size", "intermediate_size", "head_dim", "linear_key_head_dim",
                          "linear_value_head_dim"}) {
    EXPECT_THAT(refused_with(key, "40"),
                AllOf(HasSubstr(std::string(key) + " is 40"), HasSubstr("multiple of 16")));
  }
  EXPECT_THAT(refused_with("linear_conv_kernel_dim", "3"), HasSubstr("is 3; allowed: 4"));
  EXPECT_THAT(
      refused_with("num_attention_heads", "5"),
      AllOf(HasSubstr("num_attention_heads is 5"), HasSubstr("num_key_value_heads, which is 2")));
  CheckpointImage image = make_tiny_checkpoint({.linear_key_heads = 2, .linear_value_heads = 3});
  EXPECT_THAT(refused(image),
              AllOf(HasSubstr("linear_num_value_heads is 3"), HasSubstr("which is 2")));
}

TEST(ModelConfig, RotaryDimsMustBeEvenAndWhole) {
  const auto with_factor = [](const std::string& factor) {
    return refused_with("rope_parameters",
                        R"({"rope_theta": 1e7, "partial_rotary_factor": )" + factor + "}");
  };
  EXPECT_THAT(with_factor("0.1875"), AllOf(HasSubstr("0.1875"), HasSubstr("3 rotary dims")));
  EXPECT_THAT(with_factor("0.3"), HasSubstr("4.8 rotary dims"));
  EXPECT_THAT(with_factor("0.01"), HasSubstr("rotary dims"));
  for (const char* bad : {"0", "-0.25", "1.5", "1e400", "\"half\"", "true"}) {
    EXPECT_THAT(with_factor(bad), HasSubstr("partial_rotary_factor")) << bad;
  }
}

TEST(ModelConfig, MropeSectionsMustAddUpToTheRotaryPairs) {
  for (const char* bad : {"[1, 1, 1]", "[2]", "[1, 1, 0, 0]", "[3, -1, 0]", "[1.0, 1, 0]", "5",
                          "[9223372036854775807, 9223372036854775807, 4]"}) {
    EXPECT_THAT(refused_with("rope_parameters",
                             std::string(R"({"rope_theta": 1e7, "mrope_section": )") + bad + "}"),
                AllOf(HasSubstr("mrope_section"), HasSubstr("half the rotary dims, 2")))
        << bad;
  }
}

TEST(ModelConfig, RopeThetaAndEpsilonMustBeSane) {
  for (const char* bad : {"0", "-1", "0.5", "1e16", "\"1e7\""}) {
    EXPECT_THAT(refused_with("rope_parameters", std::string(R"({"rope_theta": )") + bad + "}"),
                HasSubstr("rope_theta"))
        << bad;
  }
  EXPECT_THAT(refused_with("rope_parameters", "{}"), HasSubstr("rope_theta is missing"));
  EXPECT_THAT(refused_with("rope_parameters", "[1]"), HasSubstr("rope_parameters is [1]"));
  for (const char* bad : {"0", "-1e-6", "1", "\"x\""}) {
    EXPECT_THAT(refused_with("rms_norm_eps", bad), HasSubstr("rms_norm_eps")) << bad;
  }
}

TEST(ModelConfig, LayerTypesMustNameEveryLayer) {
  EXPECT_THAT(refused_with("layer_types", "[\"full_attention\"]"),
              AllOf(HasSubstr("1 entries"), HasSubstr("num_hidden_layers is 4")));
  EXPECT_THAT(refused_with("layer_types",
                           R"(["full_attention", "sliding_attention", "full_attention", "x"])"),
              AllOf(HasSubstr("layer_types[1]"), HasSubstr("sliding_attention")));
  EXPECT_THAT(refused_with("layer_types", "4"), HasSubstr("layer_types is 4"));
  EXPECT_THAT(refused_with("full_attention_interval", "0"),
              HasSubstr("full_attention_interval is 0"));
}

TEST(ModelConfig, StopIdsOutsideTheVocabularyAreRefused) {
  for (const char* bad : {"64", "-1", "1.5", "\"</s>\"", "[3, 64]", "[[3]]", "true"}) {
    EXPECT_THAT(refused_with("eos_token_id", bad),
                AllOf(HasSubstr("eos_token_id"), HasSubstr("0..63")))
        << bad;
  }
  CheckpointImage image = make_tiny_checkpoint({});
  image.generation_config = R"({"eos_token_id": 64})";
  EXPECT_THAT(refused(image), HasSubstr("dir/generation_config.json"));
}

// ---- JSON ----

TEST(ModelConfig, InvalidJsonIsRefusedWithLineAndColumn) {
  const auto parse_text = [](const std::string& text) {
    return refusal([&] { parse_model_config(text, "dir/config.json", "", ""); });
  };
  EXPECT_THAT(parse_text("{\n  \"a\": 1,\n  \"b\": tru\n}"), HasSubstr("line 3, column"));
  EXPECT_THAT(parse_text("{\"model_type\": \"llama\", \"model_type\": \"qwen3_5\"}"),
              AllOf(HasSubstr("\"model_type\" appears twice"), HasSubstr("line 1")));
  EXPECT_THAT(parse_text("{\"x\": {\"a\": 1,\n\"\\u0061\": 2}}"),
              AllOf(HasSubstr("\"a\" appears twice"), HasSubstr("line 2")));
  EXPECT_THAT(parse_text("{} x"), HasSubstr("invalid JSON"));
  EXPECT_THAT(parse_text(""), HasSubstr("empty"));
  EXPECT_THAT(parse_text("[]"), HasSubstr("an object is expected"));
  EXPECT_THAT(parse_text("{\"a\": NaN}"), HasSubstr("invalid JSON"));
  EXPECT_THAT(parse_text(std::string(100000, '[')), HasSubstr("invalid JSON"));
  EXPECT_THAT(parse_text("{\"a\": \"\xff\"}"), HasSubstr("invalid JSON"));
}

TEST(ModelConfig, EveryTruncationOfTheJsonIsRefused) {
  for (const bool nested : {false, true}) {
    const std::string text = config_json(make_tiny_checkpoint({.nested = nested}));
    for (std::size_t length = 0; length < text.size(); ++length) {
      const std::string message =
          refusal([&] { parse_model_config(text.substr(0, length), "dir/config.json", "", ""); });
      ASSERT_THAT(message, HasSubstr("dir/config.json")) << length;
    }
  }
}

TEST(ModelConfig, NamesFromFilesCannotBreakTheLineOfTheMessage) {
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config["model_type"] = "\"a\\nb\\u001b[31m\"";
  EXPECT_THAT(refused(image), HasSubstr("a\\x0ab\\x1b[31m"));
  image.text_config["model_type"] = "\"" + std::string(100000, 'x') + "\"";
  EXPECT_LT(refused(image).size(), 500U);
}

// ---- files ----

TEST(ModelConfig, PathsThatAreNoModelDirectoryAreRefusedHelpfully) {
  const TemporaryDirectory scratch;
  const std::filesystem::path path = scratch.path();
  const auto read = [](const std::filesystem::path& at) {
    return refusal([&] { read_model_config(at); });
  };
  EXPECT_THAT(read(path / "absent"), AllOf(HasSubstr("absent"), HasSubstr("no such directory")));
  EXPECT_THAT(read(path), AllOf(HasSubstr("config.json"), HasSubstr("No such file")));
  write_tiny_checkpoint({}, path / "model");
  EXPECT_THAT(
      read(path / "model/config.json"),
      AllOf(HasSubstr("not a directory"), HasSubstr("perhaps " + (path / "model").string())));
  std::filesystem::remove(path / "model/config.json");
  std::filesystem::create_directory(path / "model/config.json");
  EXPECT_THAT(read(path / "model"),
              AllOf(HasSubstr("config.json"), HasSubstr("not a regular file")));
}

TEST(ModelConfig, APipeInsteadOfAFileIsRefusedAndDoesNotHang) {
  const TemporaryDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch.path() / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { read_model_config(scratch.path()); }), HasSubstr("not a regular file"));
}

TEST(ModelConfig, GenerationConfigMayBeAbsentButNotBroken) {
  const TemporaryDirectory scratch;
  write_tiny_checkpoint({}, scratch.path());
  const std::filesystem::path generation = scratch.path() / "generation_config.json";
  EXPECT_THAT(read_model_config(scratch.path()).stop_token_ids, ElementsAre(62, 63));
  write_file(generation, "{\"eos_token_id\": ");
  EXPECT_THAT(refusal([&] { read_model_config(scratch.path()); }),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("invalid JSON")));
  write_file(generation, "");
  EXPECT_THAT(refusal([&] { read_model_config(scratch.path()); }), HasSubstr("empty"));
  std::filesystem::remove(generation);
  EXPECT_THAT(read_model_config(scratch.path()).stop_token_ids, ElementsAre(63));
}

}  // namespace
}  // namespace convoy::testing
