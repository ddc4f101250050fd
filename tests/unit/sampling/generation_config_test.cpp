#include "coordinator/sampling/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/exit_code.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SamplingOptions parse(std::string_view text) {
  return parse_generation_config(text, "dir/generation_config.json");
}

std::string refusal(std::string_view text) {
  try {
    (void)parse(text);
  } catch (const StartError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dir/generation_config.json: "));
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(GenerationConfig, GivesWhatTheCheckpointRecommends) {
  const SamplingOptions options = parse(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1,
          "eos_token_id": [1, 2], "max_new_tokens": "whatever"})");
  EXPECT_FALSE(options.is_greedy());
  EXPECT_EQ(options.temperature, 0.6);
  EXPECT_EQ(options.top_k, 20);
  EXPECT_EQ(options.top_p, 0.95);
  EXPECT_EQ(options.min_p, 0.05);
  EXPECT_EQ(options.repetition_penalty, 1.1);
  EXPECT_EQ(options.presence_penalty, 0.0);
}

TEST(GenerationConfig, MissingAndNullMeanTheDocumentedDefaults) {
  for (
      const auto* text :
      {"{}",
       R"({"do_sample": null, "temperature": null, "top_k": null, "top_p": null, "min_p": null})"}) {
    const SamplingOptions options = parse(text);
    EXPECT_TRUE(options.greedy);
    EXPECT_EQ(options.temperature, 1.0);
    EXPECT_EQ(options.top_k, 0);
    EXPECT_EQ(options.top_p, 1.0);
    EXPECT_EQ(options.min_p, 0.0);
    EXPECT_EQ(options.repetition_penalty, 1.0);
  }
}

TEST(GenerationConfig, NumbersAreReadWhereSamplingIsOff) {
  const SamplingOptions options = parse(R"({"do_sample": false, "temperature": 1, "top_k": 40})");
  EXPECT_TRUE(options.greedy);
  EXPECT_EQ(options.temperature, 1.0);
  EXPECT_EQ(options.top_k, 40);
}

TEST(GenerationConfig, WrongTypesAreRefusedByName) {
  EXPECT_THAT(refusal(R"({"do_sample": 1})"),
              HasSubstr("do_sample is 1; allowed is true or false"));
  EXPECT_THAT(refusal(R"({"temperature": "hot"})"),
              HasSubstr(R"(temperature is "hot"; allowed is a number)"));
  EXPECT_THAT(refusal(R"({"temperature": true})"),
              HasSubstr("temperature is true; allowed is a number"));
  EXPECT_THAT(refusal(R"({"top_k": 20.5})"), HasSubstr("top_k is 2.05E1; allowed is an integer"));
  EXPECT_THAT(refusal(R"({"top_k": 18446744073709551615})"), HasSubstr("top_k"));
  EXPECT_THAT(refusal(R"({"top_p": [0.9]})"), HasSubstr("top_p is [9E-1]; allowed is a number"));
  EXPECT_THAT(refusal(R"({"min_p": {}})"), HasSubstr("min_p is {}; allowed is a number"));
  EXPECT_THAT(refusal(R"({"repetition_penalty": "1.0"})"),
              HasSubstr("repetition_penalty is \"1.0\""));
}

TEST(GenerationConfig, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_THAT(refusal(R"({"temperature": -1})"),
              HasSubstr("temperature is -1; allowed is 0 to 1000000"));
  EXPECT_THAT(refusal(R"({"top_p": 2})"), HasSubstr("top_p is 2"));
  EXPECT_THAT(refusal(R"({"repetition_penalty": 0})"), HasSubstr("repetition_penalty is 0"));
}

TEST(GenerationConfig, BrokenDocumentsAreRefusedAtEveryLength) {
  const std::string whole = R"({"do_sample": true, "top_k": 20, "eos_token_id": [1, 2]})";
  EXPECT_EQ(parse(whole).top_k, 20);
  for (size_t length = 0; length < whole.size(); ++length) refusal(whole.substr(0, length));
  EXPECT_THAT(refusal("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal(std::string(5000, '[')), HasSubstr("invalid JSON"));
}

TEST(GenerationConfig, OfTheStandInModelIsGreedy) {
  const SamplingOptions options =
      read_generation_config(CONVOY_SOURCE_DIR "/tests/fixtures/standin");
  EXPECT_TRUE(options.is_greedy());
  EXPECT_EQ(options.temperature, 1.0);
}

class GenerationConfigFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "convoy-sampling-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "generation_config.json";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string refusal() const {
    try {
      (void)read_generation_config(directory_);
    } catch (const StartError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path directory_;
  std::filesystem::path path_;
};

TEST_F(GenerationConfigFile, MissingGivesTheDefaults) {
  EXPECT_TRUE(read_generation_config(directory_).greedy);
}

TEST_F(GenerationConfigFile, IsReadWhole) {
  std::ofstream(path_) << R"({"do_sample": true, "top_k": 12})";
  const SamplingOptions options = read_generation_config(directory_);
  EXPECT_FALSE(options.greedy);
  EXPECT_EQ(options.top_k, 12);
}

TEST_F(GenerationConfigFile, WhatIsNoFileIsRefusedAndNotWaitedFor) {
  std::filesystem::create_directory(path_);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path_.string()), HasSubstr("not a regular file")));
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path_.string()), HasSubstr("not a regular file")));
}

TEST_F(GenerationConfigFile, OfHugeSizeIsRefused) {
  std::ofstream(path_) << "{}";
  std::filesystem::resize_file(path_, (1 << 20) + 1);
  EXPECT_THAT(refusal(), HasSubstr("1048577 bytes; allowed are 1048576"));
}

}  // namespace
}  // namespace convoy
