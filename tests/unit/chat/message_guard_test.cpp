// Text of messages never becomes a control token, and what the template writes itself does.
#include "coordinator/chat/message_guard.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace convoy {
namespace {

const Tokenizer& standin() {
  static const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/standin");
  return tokenizer;
}

std::vector<int32_t> encode(std::string_view text, bool specials) {
  auto ids = standin().encode(text, specials);
  EXPECT_TRUE(ids.ok());
  return std::move(ids).value();
}

// Ids of a user turn around `content`, the way a template writes one.
std::vector<int32_t> turn(std::string_view content) {
  MessageGuard guard(standin());
  const auto guarded = guard.protect({{"content", content}});
  EXPECT_TRUE(guarded.ok());
  const auto ids =
      guard.encode("<|im_start|>user\n" + std::string(guarded.value().at("content").as_string()) +
                   "<|im_end|>\n");
  EXPECT_TRUE(ids.ok());
  return ids.value();
}

TEST(MessageGuard, EveryControlTokenTypedInAMessageStaysText) {
  for (const std::string& token : standin().added_token_contents()) {
    for (const std::string& content :
         {token, ("a " + token).append(token).append(" b"), token.substr(1) + token, "<" + token}) {
      std::vector<int32_t> wanted = encode("<|im_start|>", true);
      const auto body = encode("user\n" + content, false);
      wanted.insert(wanted.end(), body.begin(), body.end());
      const auto end = encode("<|im_end|>\n", true);
      wanted.insert(wanted.end(), end.begin(), end.end());
      EXPECT_EQ(turn(content), wanted) << content;
    }
  }
}

TEST(MessageGuard, OrdinaryTextIsLeftAlone) {
  for (const char* content : {"", " ", "Hello, dragon!", "a <", "<\n", "\xEF\xBB\xBFmark",
                              "e\xCC\x81 \xF0\x9F\x90\x89", "a < b | c"}) {
    const std::string rendered = "<|im_start|>user\n" + std::string(content) + "<|im_end|>\n";
    EXPECT_EQ(turn(content), encode(rendered, true)) << content;
  }
}

// Templates print the parts of a message one behind the other, some of them trimmed.
TEST(MessageGuard, AControlTokenSplitOverTwoStringsStaysText) {
  for (const std::string& token : standin().added_token_contents()) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      for (const std::string space : {"", " \n"}) {
        MessageGuard guard(standin());
        const auto guarded =
            guard.protect({{"parts", {token.substr(0, cut) + space, token.substr(cut)}}});
        ASSERT_TRUE(guarded.ok());
        const auto& parts = guarded.value().at("parts").as_array();
        std::string first(parts[0].as_string());
        ASSERT_TRUE(first.ends_with(space)) << "it could not be trimmed";
        first.resize(first.size() - space.size());
        const auto ids = guard.encode(first + std::string(parts[1].as_string()));
        ASSERT_TRUE(ids.ok());
        EXPECT_EQ(ids.value(), encode(token, false)) << token << " cut at " << cut;
      }
    }
  }
}

TEST(MessageGuard, TextThatUsesAGuardCharacterGetsAnother) {
  const std::string content = "\xEF\xB7\x90<|im_end|>\xEF\xB7\x91";  // U+FDD0, U+FDD1
  const auto ids = turn(content);
  const auto end = standin().added_token("<|im_end|>");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *end), 1);
  EXPECT_NE(standin().decode(ids, true).find(content), std::string::npos);
}

TEST(MessageGuard, RefusesTextThatUsesEveryGuardCharacter) {
  std::string content;
  for (int low = 0x90; low <= 0xAF; ++low)
    content += std::string("\xEF\xB7") + static_cast<char>(low);
  MessageGuard guard(standin());
  EXPECT_FALSE(guard.protect({{"content", content}}).ok());
}

TEST(MessageGuard, GuardsStringsAndKeysAtEveryDepth) {
  MessageGuard guard(standin());
  const auto guarded =
      guard.protect({{"a", {{{"<think>", "<think>"}, {"role", "user"}}, "<think>"}}});
  ASSERT_TRUE(guarded.ok());
  const auto& list = guarded.value().at("a").as_array();
  const auto& object = list.at(0).as_object();
  EXPECT_FALSE(object.contains("<think>"));
  EXPECT_EQ(object.begin()->value(), object.begin()->key());
  EXPECT_EQ(object.at("role").as_string(), "user");
  EXPECT_NE(list.at(1).as_string(), "<think>");
}

}  // namespace
}  // namespace convoy
