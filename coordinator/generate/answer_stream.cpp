#include "coordinator/generate/answer_stream.h"

#include <algorithm>

namespace convoy {

AnswerStream::AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
                           ReasoningMarkers markers)
    : markers_(markers),
      reasoning_(tokenizer, {}),
      answer_(tokenizer, std::move(stop_strings)),
      channel_(markers.begins_inside ? Channel::reasoning : Channel::answer) {}

AnswerPiece AnswerStream::push(int32_t id) {
  if (channel_ == Channel::reasoning) {
    ++tokens_before_answer_;
    if (id != markers_.end_id) return {Channel::reasoning, reasoning_.push(id)};
    channel_ = Channel::answer;
    skipping_blank_ = true;
    return {Channel::reasoning, reasoning_.finish()};
  }
  // Reasoning comes first or not at all: a marker in the middle of an answer is hidden, but begins
  // nothing.
  if (id == markers_.begin_id && tokens_before_answer_ == 0 && answer_.kept_tokens() == 0) {
    ++tokens_before_answer_;
    channel_ = Channel::reasoning;
    return {Channel::reasoning, ""};
  }
  return show_answer(answer_.push(id));
}

AnswerPiece AnswerStream::finish() {
  if (channel_ == Channel::reasoning) return {Channel::reasoning, reasoning_.finish()};
  return show_answer(answer_.finish());
}

AnswerPiece AnswerStream::show_answer(std::string text) {
  if (skipping_blank_) {
    text.erase(0, std::min(text.find_first_not_of("\r\n"), text.size()));
    skipping_blank_ = text.empty();
  }
  return {Channel::answer, std::move(text)};
}

}  // namespace convoy
