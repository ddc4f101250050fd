#include "coordinator/generate/answer_stream.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace convoy {
namespace {

const Tokenizer& standin() {
  static const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/standin");
  return tokenizer;
}

ReasoningMarkers markers(bool begins_inside) {
  return {.begin_id = standin().added_token("<think>"),
          .end_id = standin().added_token("</think>"),
          .begins_inside = begins_inside};
}

struct Shown {
  std::string reasoning, answer;
  int kept = 0;
  bool stopped = false;
};

Shown show(const std::string& text, bool begins_inside, std::vector<std::string> stops = {}) {
  AnswerStream stream(standin(), std::move(stops), markers(begins_inside));
  Shown shown;
  const auto take = [&](const AnswerPiece& piece) {
    (piece.channel == Channel::answer ? shown.answer : shown.reasoning) += piece.text;
  };
  const auto ids = standin().encode(text, true).value();
  for (const int32_t id : ids) {
    take(stream.push(id));
    if (stream.stopped()) break;
  }
  take(stream.finish());
  shown.kept = stream.kept_tokens();
  shown.stopped = stream.stopped();
  return shown;
}

TEST(AnswerStream, WithoutReasoningEverythingIsAnswer) {
  const Shown shown = show("Once upon a time", false);
  EXPECT_EQ(shown.answer, "Once upon a time");
  EXPECT_EQ(shown.reasoning, "");
}

TEST(AnswerStream, ReasoningThatThePromptBeganEndsAtItsMarker) {
  const Shown shown = show("the cat\n</think>\n\nOnce upon", true);
  EXPECT_EQ(shown.reasoning, "the cat\n");
  EXPECT_EQ(shown.answer, "Once upon");
}

TEST(AnswerStream, ReasoningThatTheModelBeginsIsTakenApart) {
  const Shown shown = show("<think>\nthe cat</think>\n\nOnce", false);
  EXPECT_EQ(shown.reasoning, "\nthe cat");
  EXPECT_EQ(shown.answer, "Once");
}

TEST(AnswerStream, AMarkerInTheMiddleOfAnAnswerBeginsNothing) {
  const Shown shown = show("Once<think> upon", false);
  EXPECT_EQ(shown.reasoning, "");
  EXPECT_EQ(shown.answer, "Once upon");
}

TEST(AnswerStream, StopStringsAreLookedForInTheAnswerOnly) {
  const Shown shown = show("a cat</think>\n\nOnce a cat sat", true, {"cat"});
  EXPECT_EQ(shown.reasoning, "a cat");
  EXPECT_EQ(shown.answer, "Once a ");
  EXPECT_TRUE(shown.stopped);
  const auto all = standin().encode("a cat</think>\n\nOnce a", true).value();
  EXPECT_GE(shown.kept, static_cast<int>(all.size()));
}

TEST(AnswerStream, ReasoningThatNeverEndsIsNoAnswer) {
  const Shown shown = show("the cat sat", true);
  EXPECT_EQ(shown.reasoning, "the cat sat");
  EXPECT_EQ(shown.answer, "");
}

// Two runs, the second from the state that the first saved, show what one would.
TEST(AnswerStream, GoesOnAfterAnyToken) {
  struct Case {
    const char* text;
    bool begins_inside;
  };
  for (const Case& c : {Case{"the cat\n</think>\n\n\n Once upon", true},
                        {"the cat ran", true},
                        {"<think>\nthe cat</think>\n\nOnce", false},
                        {"Once <think> upon a time", false}}) {
    const auto ids = standin().encode(c.text, true).value();
    const Shown whole = show(c.text, c.begins_inside);
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      Shown joined;
      const auto take = [&](const AnswerPiece& piece) {
        (piece.channel == Channel::answer ? joined.answer : joined.reasoning) += piece.text;
      };
      AnswerStream first(standin(), {}, markers(c.begins_inside));
      for (size_t i = 0; i < cut; ++i) take(first.push(ids[i]));
      take(first.finish());
      AnswerStream second(standin(), {}, markers(c.begins_inside));
      second.go_on_after({ids.data(), cut});
      for (size_t i = cut; i < ids.size(); ++i) take(second.push(ids[i]));
      take(second.finish());
      EXPECT_EQ(joined.reasoning, whole.reasoning) << c.text << ", cut after " << cut;
      EXPECT_EQ(joined.answer, whole.answer) << c.text << ", cut after " << cut;
      EXPECT_EQ(second.kept_tokens(), whole.kept) << c.text << ", cut after " << cut;
    }
  }
}

TEST(AnswerStream, AStopStringInReasoningThatWasShownDoesNotEndTheAnswer) {
  const auto ids = standin().encode("the cat", true).value();
  AnswerStream reasoning(standin(), {"cat"}, markers(true));
  EXPECT_FALSE(reasoning.go_on_after(ids));
  AnswerStream answer(standin(), {"cat"}, markers(false));
  EXPECT_TRUE(answer.go_on_after(ids));
}

}  // namespace
}  // namespace convoy
