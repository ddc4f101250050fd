// Byte for byte what jinja2 renders in Hugging Face's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "tests/unit/chat_template/template_fixture.h"

namespace convoy {
namespace {

using template_test::fixture_json;
using template_test::fixture_text;
using template_test::rendered;
using template_test::text_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ChatTemplateVectors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

void expect_conversations(const ChatTemplate& parsed, const boost::json::array& vectors) {
  for (const auto& vector : vectors) {
    SCOPED_TRACE(text_of(vector.at("name")));
    const auto result = parsed.render(vector.at("context").as_object());
    if (const auto* error = vector.as_object().if_contains("error")) {
      ASSERT_FALSE(result.ok()) << result.value();
      EXPECT_THAT(result.error(), HasSubstr(text_of(*error)));
      EXPECT_THAT(result.error(), StartsWith("t: line "));
    } else {
      ASSERT_TRUE(result.ok()) << result.error();
      EXPECT_EQ(result.value(), text_of(vector.at("rendered")));
    }
  }
}

TEST_F(ChatTemplateVectors, Qwen3RendersAllConversations) {
  const auto parsed = ChatTemplate::parse(fixture_text("qwen3_chat_template.jinja"), "qwen3");
  const auto vectors = fixture_json("qwen3_chat_vectors.json");
  int count = 0;
  for (const auto& vector : vectors.at("cases").as_array()) {
    SCOPED_TRACE(text_of(vector.at("name")));
    const auto result = parsed.render(vector.at("input").as_object());
    ASSERT_TRUE(result.ok()) << result.error();
    EXPECT_EQ(result.value(), text_of(vector.at("rendered")));
    ++count;
  }
  EXPECT_EQ(count, 25);
}

TEST_F(ChatTemplateVectors, Qwen35StyleRendersAllConversations) {
  const auto vectors = fixture_json("qwen35_vectors.json");
  EXPECT_GE(vectors.as_array().size(), 60u);
  expect_conversations(ChatTemplate::parse(fixture_text("qwen35_style.jinja"), "t"),
                       vectors.as_array());
}

TEST_F(ChatTemplateVectors, BundledModelRendersAllConversations) {
  const auto config = boost::json::parse(
      template_test::read_text(CONVOY_SOURCE_DIR "/tests/fixtures/standin/tokenizer_config.json"));
  const auto vectors = fixture_json("standin_vectors.json");
  EXPECT_GE(vectors.as_array().size(), 20u);
  expect_conversations(ChatTemplate::parse(text_of(config.at("chat_template")), "t"),
                       vectors.as_array());
}

TEST_F(ChatTemplateVectors, ExpressionsAndStatementsAreJinjas) {
  const auto vectors = fixture_json("expression_vectors.json");
  const auto& context = vectors.at("context").as_object();
  for (const auto& vector : vectors.at("vectors").as_array()) {
    const std::string source = text_of(vector.at("template"));
    const std::string ours = rendered(source, context);
    const auto* expected = vector.as_object().if_contains("rendered");
    if (expected == nullptr) {
      EXPECT_THAT(ours, StartsWith("error: t: line ")) << source;
    } else {
      EXPECT_EQ(ours, text_of(*expected)) << source;
    }
  }
  EXPECT_GE(vectors.at("vectors").as_array().size(), 900u);
}

}  // namespace
}  // namespace convoy
