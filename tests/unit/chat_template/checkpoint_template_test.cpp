#include "coordinator/chat_template/checkpoint_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/chat_template/template_fixture.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

class CheckpointTemplateFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "convoy-template-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  std::string render(const std::string& request) const {
    const auto loaded = CheckpointTemplate::load(directory_);
    if (!loaded) return "no template";
    const auto result = loaded->render(boost::json::parse(request).as_object());
    return result.ok() ? result.value() : "error: " + result.error();
  }
  std::string load_error() const {
    try {
      const auto loaded = CheckpointTemplate::load(directory_);
      return loaded ? "loaded" : "no template";
    } catch (const StartError& error) {
      return error.what();
    }
  }

  std::filesystem::path directory_;
};

TEST_F(CheckpointTemplateFiles, JinjaFileWinsOverTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  EXPECT_EQ(render("{}"), "config");
  write("chat_template.jinja", "file {{ bos_token }}\n");
  EXPECT_EQ(render("{}"), "file <s>");
}

TEST_F(CheckpointTemplateFiles, WithoutATemplateThereIsNone) {
  EXPECT_EQ(load_error(), "no template");
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(load_error(), "no template");
}

TEST_F(CheckpointTemplateFiles, AListNeedsADefaultAndMayHaveOneForTools) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
      {"name": "default", "template": "plain"}, {"name": "rag", "template": "{% nosuch %}"}]})");
  EXPECT_EQ(render("{}"), "plain");
  EXPECT_EQ(render(R"({"tools": null})"), "plain");
  EXPECT_EQ(render(R"({"tools": [{"type": "function"}]})"), "tools");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "tools"}]})");
  EXPECT_THAT(load_error(), HasSubstr("no template named \"default\""));
}

TEST_F(CheckpointTemplateFiles, SpecialTokensAreVariables) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ image_token }}",
      "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null, "extra_special_tokens": {"image_token": "<img>"}})");
  EXPECT_EQ(render("{}"), "<s></s>False<img>");
  EXPECT_EQ(render(R"({"bos_token": "B"})"), "B</s>False<img>");
}

TEST_F(CheckpointTemplateFiles, WhatHuggingFaceAlwaysPassesIsDefined) {
  write("chat_template.jinja",
        "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ enable_thinking is defined }}");
  EXPECT_EQ(render("{}"), "NoneNoneFalseFalse");
  EXPECT_EQ(render(R"({"add_generation_prompt": true, "enable_thinking": false})"),
            "NoneNoneTrueTrue");
}

TEST_F(CheckpointTemplateFiles, NullMembersOfMessagesAreLeftOut) {
  write("chat_template.jinja",
        "{% for m in messages %}{{ m.content is defined }}{{ m.tool_calls }};{% endfor %}");
  EXPECT_EQ(
      render(
          R"({"messages": [{"role": "a", "content": null, "tool_calls": [1]}, {"content": "x", "tool_calls": null}]})"),
      "False[1];True;");
}

TEST_F(CheckpointTemplateFiles, ReasoningIsFoundUnderItsOtherNames) {
  write("chat_template.jinja",
        "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }};{% endfor %}");
  EXPECT_EQ(
      render(R"({"messages": [{"reasoning_content": "a"}, {"reasoning": "b"}, {"thinking": "c"},
      {"reasoning_content": "d", "thinking": "e"}, {}]})"),
      "a/a;b/b;c/c;d/e;/;");
}

TEST_F(CheckpointTemplateFiles, BadFilesAreRefusedByName) {
  write("tokenizer_config.json", "{");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json: invalid JSON"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json: must be a JSON object"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(load_error(), HasSubstr("(chat_template): must be a text or a list"));
  write("tokenizer_config.json", R"({"chat_template": "a\n{{ x"})");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json (chat_template): line 2, column 1: "));
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(load_error(), HasSubstr("every entry needs a name and a template"));
}

TEST(CheckpointTemplate, BundledModelHasOne) {
  const auto loaded = CheckpointTemplate::load(CONVOY_SOURCE_DIR "/tests/fixtures/standin");
  ASSERT_TRUE(loaded.has_value());
  const auto result = loaded->render(
      boost::json::parse(
          R"({"messages": [{"role": "user", "content": " Hi "}], "add_generation_prompt": true})")
          .as_object());
  ASSERT_TRUE(result.ok()) << result.error();
  EXPECT_EQ(result.value(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

}  // namespace
}  // namespace convoy
