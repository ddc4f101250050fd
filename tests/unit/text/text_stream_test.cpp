#include "coordinator/text/text_stream.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "tests/unit/text/small_tokenizer.h"

namespace convoy {
namespace {

using Ids = std::vector<int32_t>;

// Byte tokens have their byte as id, so texts can be cut anywhere.
const Tokenizer& small() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(boost::json::serialize(text_test::small_tokenizer()), "", "test");
  return tokenizer;
}

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

struct Outcome {
  std::string text;
  std::vector<std::string> deltas;
  bool stopped;
  int kept;
};

Outcome run(const Ids& ids, std::vector<std::string> stops) {
  TextStream stream(small(), std::move(stops));
  Outcome outcome{};
  for (const int32_t id : ids) outcome.deltas.push_back(stream.push(id));
  outcome.deltas.push_back(stream.finish());
  for (const auto& delta : outcome.deltas) {
    EXPECT_FALSE(find_invalid_utf8(delta)) << "a delta must be whole characters";
    outcome.text += delta;
  }
  outcome.stopped = stream.stopped();
  outcome.kept = stream.kept_tokens();
  EXPECT_EQ(stream.push('x'), "") << "nothing comes after the end";
  EXPECT_EQ(stream.finish(), "");
  return outcome;
}

// --- text in two runs
// --------------------------------------------------------------------------------------------------

struct Continuation {
  bool ended;  // by a stop string at the seam
  std::string text;
  bool stopped;
  int kept;
};

Continuation go_on(std::string_view before, std::string_view text, std::vector<std::string> stops) {
  TextStream stream(small(), std::move(stops));
  Continuation result{};
  result.ended = stream.go_on_after(bytes_of(before));
  for (const int32_t id : bytes_of(text)) result.text += stream.push(id);
  result.text += stream.finish();
  result.stopped = stream.stopped();
  result.kept = stream.kept_tokens();
  return result;
}

TEST(TextStreamGoesOn, AStopStringAcrossTheSeamEndsTheTextAndIsNotShownAgain) {
  const std::string whole = "one, two, three";
  for (size_t seam = 1; seam < whole.size(); ++seam) {
    const auto result = go_on(whole.substr(0, seam), whole.substr(seam), {"two, th"});
    EXPECT_EQ(result.ended, seam == 12);
    if (seam >= 12) {
      EXPECT_EQ(result.text, whole.substr(seam));
      EXPECT_FALSE(result.stopped);
      continue;
    }
    EXPECT_TRUE(result.stopped) << seam;
    EXPECT_EQ(result.text, seam < 5 ? whole.substr(seam, 5 - seam) : "");
    EXPECT_EQ(result.kept, 5);
  }
}

TEST(TextStreamGoesOn, WhatOnlyBeganLikeAStopStringIsShownOnce) {
  EXPECT_EQ(go_on("one tw", "in", {"two"}).text, "in");
  EXPECT_EQ(go_on("aa", "ab", {"aaac"}).text, "ab");
}

TEST(TextStreamGoesOn, AStopStringThatTheSeamCompletesIsSaid) {
  EXPECT_TRUE(go_on("one two", "", {"two"}).ended);
  const auto later = go_on("one two, ", "three", {"two"});
  EXPECT_FALSE(later.ended);
  EXPECT_EQ(later.text, "three");
  // The end of one may begin the next.
  EXPECT_EQ(go_on("abab", "ac", {"aba"}).text, "");
}

TEST(TextStreamGoesOn, ACharacterAcrossTheSeamIsWhole) {
  const std::string dragon = "\U0001F409";
  for (size_t seam = 1; seam < dragon.size(); ++seam)
    EXPECT_EQ(go_on("a" + dragon.substr(0, seam), dragon.substr(seam) + "b", {}).text,
              dragon + "b");
}

// --- characters
// --------------------------------------------------------------------------------------------------

TEST(TextStreamCharacters, AppearOnlyWhenTheirLastByteIsThere) {
  for (const std::string text :
       {"\U0001F600", "\u65E5\u672C", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "e\u0301",
        "\uFEFFa"}) {
    const auto outcome = run(bytes_of(text), {});
    EXPECT_EQ(outcome.text, text);
    EXPECT_EQ(outcome.deltas.back(), "");
    EXPECT_EQ(outcome.kept, static_cast<int>(text.size()));
  }
  EXPECT_EQ(run(bytes_of("\U0001F600"), {}).deltas,
            (std::vector<std::string>{"", "", "", "\U0001F600", ""}));
}

TEST(TextStreamCharacters, IncompleteOnesBecomeAReplacementAtTheEnd) {
  EXPECT_EQ(run(bytes_of("a\xF0\x9F\x98"), {}).text, "a\uFFFD");
  EXPECT_EQ(run(bytes_of("\xE2\x82"), {}).deltas, (std::vector<std::string>{"", "", "\uFFFD"}));
}

TEST(TextStreamCharacters, RandomTokensGiveWhatDecodeGives) {
  std::mt19937 random(5);
  for (int round = 0; round < 5000; ++round) {
    Ids ids;
    const int limit = round % 2 == 0 ? 256 : small().vocab_size() + 2;
    for (size_t length = random() % 12; ids.size() < length;)
      ids.push_back(static_cast<int32_t>(random()) % limit);
    ASSERT_EQ(run(ids, {}).text, small().decode(ids, false));
    ASSERT_EQ(run(ids, {"\x01\x01\x01\x01"}).text, small().decode(ids, false))
        << "a stop string that does not occur";
  }
}

TEST(TextStreamCharacters, SpecialTokensHaveNoTextAndDoNotPartCharacters) {
  EXPECT_EQ(run({'a', 260, 261, 'b'}, {}).text, "a<think>b");
  EXPECT_EQ(run({0xC3, 260, 0xA9}, {}).text, "\u00E9");
}

// --- stop strings
// ------------------------------------------------------------------------------------------------

TEST(TextStreamStop, IsHeldBackWhileItMayComeAndReleasedWhenItDoesNot) {
  const auto outcome = run(bytes_of("aSTxSTOP!"), {"STOP"});
  EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"a", "", "", "STx", "", "", "", "", "", ""}));
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 4);
}

TEST(TextStreamStop, BeginningsAreReturnedAtTheEnd) {
  const auto outcome = run(bytes_of("abcSTO"), {"STOP"});
  EXPECT_EQ(outcome.text, "abcSTO");
  EXPECT_EQ(outcome.deltas.back(), "STO");
  EXPECT_FALSE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 6);
}

TEST(TextStreamStop, FallsBackToAShorterBeginning) {
  EXPECT_EQ(run(bytes_of("aabaabaac"), {"aabaac"}).text, "aab");
  EXPECT_EQ(run(bytes_of("ababac"), {"abac"}).text, "ab");
  EXPECT_EQ(run(bytes_of("aaab"), {"aab"}).text, "a");
}

TEST(TextStreamStop, EqualToTheFirstToken) {
  const auto outcome = run({259, '!'}, {"hello"});
  EXPECT_EQ(outcome.text, "");
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 0);
}

TEST(TextStreamStop, CompletedByTheLastToken) {
  const auto outcome = run({'a', 'b', 259}, {"bhello"});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 1);
}

TEST(TextStreamStop, InsideOneTokenKeepsTheTokenAcrossTheCut) {
  const auto outcome = run({'x', 259, 'y'}, {"ll"});
  EXPECT_EQ(outcome.text, "xhe");
  EXPECT_EQ(outcome.kept, 2);
}

TEST(TextStreamStop, StraddlingTokensKeepsTheTokenAcrossTheCut) {
  // "hello" + "he": the stop string begins inside the first token.
  const auto outcome = run({'x', 259, 256, 'y'}, {"ohe"});
  EXPECT_EQ(outcome.text, "xhell");
  EXPECT_EQ(outcome.kept, 2);
}

TEST(TextStreamStop, TheOneCompletedFirstWinsHoweverTheTextIsCut) {
  for (const Ids& ids : {Ids{'x', 259}, bytes_of("xhello")}) {
    EXPECT_EQ(run(ids, {"hello", "ell"}).text, "xh");
    EXPECT_EQ(run(ids, {"hello", "llo"}).text, "x") << "completed together: the longest";
    EXPECT_EQ(run(ids, {"hellp", "lo"}).text, "xhel");
  }
}

TEST(TextStreamStop, SpecialTokensBeforeItAreKeptAndWithinItAreNot) {
  EXPECT_EQ(run({'a', 260, 'S', 'T'}, {"ST"}).kept, 2);
  const auto outcome = run({'a', 'S', 260, 'T'}, {"ST"});
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 1);
}

TEST(TextStreamStop, OfSeveralByteCharactersSplitInTokens) {
  const auto outcome = run(bytes_of("a\u65E5\u672C!"), {"\u672C"});
  EXPECT_EQ(outcome.text, "a\u65E5");
  EXPECT_EQ(outcome.kept, 4);
  // The first character shares two bytes with the stop string: it is still shown, once it is
  // complete.
  EXPECT_EQ(run(bytes_of("\u65E5\u65E6"), {"\u65E6\u65E6"}).text, "\u65E5\u65E6");
}

TEST(TextStreamStop, AReplacementCharacterCanBePartOfIt) {
  const auto outcome = run(bytes_of("a\xC3z"), {"\uFFFDz"});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.kept, 1);
}

TEST(TextStreamStop, EmptyAndInvalidOnesAreRefusedAndNeverFound) {
  EXPECT_TRUE(check_stop_strings(std::vector<std::string>{"a", "\u00E9"}).ok());
  EXPECT_FALSE(check_stop_strings(std::vector<std::string>{"a", ""}).ok());
  EXPECT_FALSE(check_stop_strings(std::vector<std::string>{"\xA9"}).ok());
  const auto outcome = run(bytes_of("\u00E9b"), {"", "\xA9"});
  EXPECT_EQ(outcome.text, "\u00E9b");
  EXPECT_FALSE(outcome.stopped);
}

// What the stream promises, computed from the whole text.
Outcome expected_outcome(const Ids& ids, const std::vector<std::string>& stops) {
  const std::string text = small().decode(ids, false);
  size_t best_end = std::string::npos;
  size_t best_begin = 0;
  for (const auto& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
    }
  }
  if (best_end == std::string::npos) return {text, {}, false, static_cast<int>(ids.size())};
  // All texts of the test are ASCII: text bytes are token bytes.
  int kept = 0;
  size_t before = 0;
  for (const int32_t id : ids) {
    const size_t after = before + small().token_bytes(id, false).size();
    if (after > best_begin) {
      kept += before < best_begin ? 1 : 0;
      break;
    }
    before = after;
    ++kept;
  }
  return {text.substr(0, best_begin), {}, true, kept};
}

TEST(TextStreamStop, RandomTokensAndStopStringsAgreeWithASearchOfTheWholeText) {
  const Ids tokens = {'h', 'e', 'l', 'o', 256, 257, 258, 259, 260};
  std::mt19937 random(9);
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    Ids ids;
    for (size_t length = random() % 10; ids.size() < length;)
      ids.push_back(tokens[random() % tokens.size()]);
    std::vector<std::string> stops(random() % 3 + 1);
    for (auto& stop : stops) {
      for (size_t length = random() % 5 + 1; stop.size() < length;) stop += "helo"[random() % 4];
    }
    const auto expected = expected_outcome(ids, stops);
    const auto actual = run(ids, stops);
    ASSERT_EQ(actual.text, expected.text);
    ASSERT_EQ(actual.stopped, expected.stopped);
    ASSERT_EQ(actual.kept, expected.kept);
    stopped += actual.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 5000);
}

}  // namespace
}  // namespace convoy
