// Files that are malformed, contradictory or ask for what is not supported: always StartError,
// which names the place.
#include "coordinator/text/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "base/exit_code.h"
#include "coordinator/text/tokenizer.h"
#include "tests/unit/text/small_tokenizer.h"

namespace convoy {
namespace {

namespace json = boost::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using text_test::apply_patch;
using text_test::small_tokenizer;

// The message of the StartError, or "" when the file loads.
std::string problem_of(std::string_view tokenizer_json, std::string_view config_json = "") {
  try {
    (void)Tokenizer::parse(tokenizer_json, config_json, "dir");
  } catch (const StartError& error) {
    return error.what();
  }
  return "";
}

std::string problem_with(std::string_view patch) {
  auto document = small_tokenizer();
  apply_patch(document, json::parse(json::string_view(patch.data(), patch.size())).as_object());
  return problem_of(json::serialize(document));
}

TEST(TokenizerFile, TheSmallFileLoads) {
  EXPECT_EQ(problem_of(json::serialize(small_tokenizer())), "");
}

struct Refusal {
  const char* patch;
  const char* key;
  const char* value;
};

class TokenizerFileRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerFileRefusal, NamesFileKeyAndValue) {
  EXPECT_THAT(problem_with(GetParam().patch),
              AllOf(HasSubstr("dir/tokenizer.json: "), HasSubstr(GetParam().key),
                    HasSubstr(GetParam().value)));
}

INSTANTIATE_TEST_SUITE_P(
    Unsupported, TokenizerFileRefusal,
    ::testing::Values(
        Refusal{R"({"model": {"type": "WordPiece"}})", "model.type", "WordPiece"},
        Refusal{R"({"model": {"byte_fallback": true}})", "model.byte_fallback", "true"},
        Refusal{R"({"model": {"dropout": 0.1}})", "model.dropout", "is set"},
        Refusal{R"({"model": {"continuing_subword_prefix": "##"}})",
                "model.continuing_subword_prefix", "##"},
        Refusal{R"({"model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix", "</w>"},
        Refusal{R"({"normalizer": {"type": "NFKC"}})", "normalizer.type", "NFKC"},
        Refusal{R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}})",
                "normalizer.normalizers[0].type", "Lowercase"},
        Refusal{R"({"pre_tokenizer": null})", "pre_tokenizer", "has no"},
        Refusal{R"({"pre_tokenizer": {"type": "Metaspace"}})", "pre_tokenizer.type", "Metaspace"},
        Refusal{R"({"pre_tokenizer": {"pretokenizers": []}})", "pre_tokenizer", "ByteLevel"},
        Refusal{R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}})",
                "pre_tokenizer.add_prefix_space", "true"},
        Refusal{
            R"({"pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false}, {"type": "Split"}]}})",
            "pretokenizers[1].type", "last"},
        Refusal{
            R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}]}})",
            "behavior", "Removed"},
        Refusal{
            R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": true}]}})",
            "invert", "true"},
        Refusal{
            R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated"}]}})",
            "pattern", "Regex"},
        Refusal{
            R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"},
                   {"type": "ByteLevel", "add_prefix_space": false}]}})",
            "pre_tokenizer", "does not compile"},
        Refusal{R"({"decoder": {"type": "WordPiece"}})", "decoder.type", "WordPiece"},
        Refusal{R"({"decoder": null})", "decoder", "has no"},
        Refusal{R"({"post_processor": {"type": "TemplateProcessing"}})", "post_processor.type",
                "TemplateProcessing"}));

INSTANTIATE_TEST_SUITE_P(
    Malformed, TokenizerFileRefusal,
    ::testing::Values(
        Refusal{R"({"model": null})", "model", "has no"},
        Refusal{R"({"model": []})", "model", "array"},
        Refusal{R"({"model": {"vocab": null}})", "vocab", "has no"},
        Refusal{R"({"model": {"vocab": 3}})", "model.vocab", "int64"},
        Refusal{R"({"model": {"vocab": {"he": "x"}}})", "model.vocab", "he"},
        Refusal{R"({"model": {"vocab": {"he": 256.0}}})", "model.vocab", "he"},
        Refusal{R"({"model": {"vocab": {"he": -1}}})", "model.vocab", "-1"},
        Refusal{R"({"model": {"vocab": {"he": 1048576}}})", "model.vocab", "1048576"},
        Refusal{R"({"model": {"vocab": {"he": 9223372036854775807}}})", "model.vocab",
                "9223372036854775807"},
        Refusal{R"({"model": {"vocab": {"he": 18446744073709551615}}})", "model.vocab", "he"},
        Refusal{R"({"model": {"vocab": {"he": 257}}})", "model.vocab", "257 twice"},
        Refusal{R"({"model": {"vocab": {"": 400}}})", "model.vocab", "empty"},
        Refusal{R"({"model": {"merges": null}})", "merges", "has no"},
        Refusal{R"({"model": {"merges": {}}})", "model.merges", "object"},
        Refusal{R"({"model": {"merges": [["h", "zz"]]}})", "model.merges", "zz"},
        Refusal{R"({"model": {"merges": [["z", "z"]]}})", "model.merges", "zz"},
        Refusal{R"({"model": {"merges": [["h"]]}})", "model.merges", "entry 0"},
        Refusal{R"({"model": {"merges": [["h", 1]]}})", "model.merges", "entry 0"},
        Refusal{R"({"model": {"merges": ["he"]}})", "model.merges", "he"},
        Refusal{R"({"model": {"merges": ["h e l"]}})", "model.merges", "h e l"},
        Refusal{R"({"added_tokens": {}})", "added_tokens", "object"},
        Refusal{R"({"added_tokens": [1]})", "added_tokens[0]", "int64"},
        Refusal{R"({"added_tokens": [{"content": "x"}]})", "added_tokens[0]", "id"},
        Refusal{R"({"added_tokens": [{"id": 300}]})", "added_tokens[0]", "content"},
        Refusal{R"({"added_tokens": [{"id": 300, "content": ""}]})", "added_tokens[0]", "empty"},
        Refusal{R"({"added_tokens": [{"id": -5, "content": "<x>"}]})", "added_tokens[0]", "-5"},
        Refusal{R"({"added_tokens": [{"id": 4294967296, "content": "<x>"}]})", "added_tokens[0]",
                "4294967296"},
        Refusal{R"({"added_tokens": [{"id": 257, "content": "<x>"}]})", "added_tokens[0]", "257"},
        Refusal{R"({"added_tokens": [{"id": 300, "content": "hello"}]})", "added_tokens[0]", "259"},
        Refusal{
            R"({"added_tokens": [{"id": 300, "content": "<x>"}, {"id": 300, "content": "<y>"}]})",
            "added_tokens[1]", "<y>"},
        Refusal{
            R"({"added_tokens": [{"id": 300, "content": "<x>"}, {"id": 301, "content": "<x>"}]})",
            "added_tokens[1]", "301"},
        Refusal{R"({"added_tokens": [{"id": 104, "content": "h", "special": true}]})",
                "added_tokens[0]", "single byte"},
        Refusal{
            R"({"added_tokens": [{"id": 300, "content": "<\u00e9>", "normalized": true}, {"id": 301, "content": "<e\u0301>", "normalized": true}]})",
            "300", "301"},
        Refusal{R"({"added_tokens": [{"id": 300, "content": "<x>", "special": 1}]})",
                "added_tokens[0].special", "int64"}));

TEST(TokenizerFile, EveryByteTokenIsRequired) {
  auto document = small_tokenizer();
  document["model"].as_object()["vocab"].as_object().erase("Ġ");
  EXPECT_THAT(problem_of(json::serialize(document)), HasSubstr("no token for the byte 0x20"));
}

TEST(TokenizerFile, ContradictingConfigurationIsRefused) {
  const std::string file = json::serialize(small_tokenizer());
  EXPECT_THAT(problem_of(file, "{"), HasSubstr("dir/tokenizer_config.json"));
  EXPECT_THAT(problem_of(file, R"({"added_tokens_decoder": {"x": {}}})"), HasSubstr("\"x\""));
  EXPECT_THAT(problem_of(file, R"({"added_tokens_decoder": {"300": {"content": "<think>"}}})"),
              HasSubstr("300"));
  EXPECT_THAT(problem_of(file, R"({"add_prefix_space": true})"), HasSubstr("add_prefix_space"));
}

TEST(TokenizerFile, TruncationAtEveryByteIsRefused) {
  const std::string file = json::serialize(small_tokenizer());
  for (size_t size = 0; size < file.size(); ++size) {
    ASSERT_THAT(problem_of(std::string_view(file).substr(0, size)), HasSubstr("dir/tokenizer.json"))
        << size;
  }
}

TEST(TokenizerFile, DamagedBytesNeverDoMoreThanRefuse) {
  const std::string file = json::serialize(small_tokenizer());
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = file;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    refused += problem_of(damaged).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(TokenizerFile, DeepNestingIsRefused) {
  EXPECT_THAT(problem_of(std::string(1'000'000, '[')), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem_of(R"({"added_tokens":)" + std::string(100'000, '{')),
              HasSubstr("not valid JSON"));
}

TEST(TokenizerFile, MissingFilesAreNamed) {
  const auto message = [](const std::filesystem::path& directory) -> std::string {
    try {
      (void)Tokenizer::load(directory);
    } catch (const StartError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("/nonexistent/model"), HasSubstr("/nonexistent/model/tokenizer.json"));
  const auto directory = std::filesystem::path(::testing::TempDir()) / "tokenizer_is_a_folder";
  std::filesystem::create_directories(directory / "tokenizer.json");
  EXPECT_THAT(message(directory), HasSubstr("not a regular"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace convoy
