#include "coordinator/text/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  const auto compiled = SplitPattern::compile(pattern);
  EXPECT_TRUE(compiled.ok()) << pattern << (compiled.ok() ? "" : compiled.error());
  MatchScratch scratch;
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(compiled.value().split(text, scratch, pieces).ok());
  return {pieces.begin(), pieces.end()};
}

TEST(SplitPattern, TheMongolianVowelSeparatorIsNoWhiteSpace) {
  EXPECT_THAT(split(R"(\s+|\S+)", "a\u180E b"), ElementsAre("a\u180E", " ", "b"));
  EXPECT_THAT(split(R"([\s]+|[^\s]+)", "\u180E \u3000\u0085x"),
              ElementsAre("\u180E", " \u3000\u0085", "x"));
  EXPECT_THAT(split(R"([\Sx]+)", "a\u180E\u2003b"), ElementsAre("a\u180E", "\u2003", "b"));
  EXPECT_THAT(split(R"([^\S\n]+)", "a \t\nb"), ElementsAre("a", " \t", "\nb"));
}

TEST(SplitPattern, AnEscapedBackslashIsNotAClass) {
  EXPECT_THAT(split(R"(\\s)", R"(a\sb c)"), ElementsAre("a", R"(\s)", "b c"));
  EXPECT_THAT(split(R"([\\s]+)", R"(a\sb c)"), ElementsAre("a", R"(\s)", "b c"));
}

TEST(SplitPattern, PiecesCoverTheTextWithoutGaps) {
  EXPECT_THAT(split("b+", "abbcbd"), ElementsAre("a", "bb", "c", "b", "d"));
  EXPECT_THAT(split("b*", "abba"), ElementsAre("a", "bb", "a"));
  EXPECT_THAT(split("", "a\u00E9c"), ElementsAre("a", "\u00E9", "c"));
  EXPECT_THAT(split("x", ""), ElementsAre());
}

TEST(SplitPattern, CaseFoldingReachesBeyondAscii) {
  EXPECT_THAT(split("(?i:'s)", "a'\u017F"), ElementsAre("a", "'\u017F"));
}

TEST(SplitPattern, WhatTheEnginesReadDifferentlyIsRefused) {
  for (const char* pattern :
       {R"(\w+)",    R"(\b)",       R"(\h)",     R"(\v)", R"(\R)",     R"(\Qa\E)",    R"(\C)",
        R"(\u0041)", R"(\1)",       "^a",        "a$",    "[a[b]]",    "[a-z&&[^b]]", "[]a]",
        "[^]a]",     "[[:alpha:]]", "(?m:a)",    "(?i)a", "(*ACCEPT)", "(?#c)",       "a{,3}",
        "a{1,2}+",   R"([\s-a])",   R"([+-\s])", "\\",    "[\\"}) {
    const auto compiled = SplitPattern::compile(pattern);
    EXPECT_FALSE(compiled.ok()) << pattern;
    if (compiled.ok()) continue;
    EXPECT_THAT(compiled.error(), HasSubstr("not supported")) << pattern;
  }
}

TEST(SplitPattern, WhatDoesNotCompileIsRefused) {
  for (const std::string& pattern :
       {std::string("(a"), std::string("[a"), std::string("a**b)"), std::string(R"(\p{Nonsense})"),
        std::string(1000, '('), std::string(100'000, 'a')}) {
    EXPECT_FALSE(SplitPattern::compile(pattern).ok()) << pattern.substr(0, 20);
  }
}

TEST(SplitPattern, CatastrophicBacktrackingIsAnError) {
  const auto compiled = SplitPattern::compile("(?:(?:a+)+b)+c");
  ASSERT_TRUE(compiled.ok());
  MatchScratch scratch;
  std::vector<std::string_view> pieces;
  EXPECT_FALSE(compiled.value().split(std::string(60, 'a') + "bxc", scratch, pieces).ok());
}

}  // namespace
}  // namespace convoy
