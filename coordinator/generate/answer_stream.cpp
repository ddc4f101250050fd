#include "coordinator/generate/answer_stream.h"

#include <algorithm>

namespace convoy {

AnswerStream::AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
                           ReasoningMarkers markers)
    : tokenizer_(tokenizer),
      markers_(markers),
      reasoning_(tokenizer, {}),
      answer_(tokenizer, std::move(stop_strings)),
      channel_(markers.begins_inside ? Channel::reasoning : Channel::answer) {}

bool AnswerStream::begins_reasoning(int32_t id) const {
  // Reasoning comes first or not at all: a marker in the middle of an answer is hidden, but begins
  // nothing.
  return id == markers_.begin_id && tokens_before_answer_ == 0 && answer_.kept_tokens() == 0;
}

bool AnswerStream::go_on_after(std::span<const int32_t> ids) {
  size_t reasoning = 0;  // tokens of it, markers included
  if (channel_ == Channel::reasoning || (!ids.empty() && begins_reasoning(ids.front()))) {
    const auto end = std::find(ids.begin(), ids.end(), markers_.end_id);
    channel_ = end == ids.end() ? Channel::reasoning : Channel::answer;
    reasoning = static_cast<size_t>(end - ids.begin()) + (end == ids.end() ? 0 : 1);
    reasoning_.go_on_after(ids.first(reasoning));
  }
  tokens_before_answer_ = static_cast<int>(reasoning);
  const auto answer = ids.subspan(reasoning);
  skipping_blank_ = reasoning > 0 && channel_ == Channel::answer &&
                    std::all_of(answer.begin(), answer.end(), [this](int32_t id) {
                      return tokenizer_.token_bytes(id, false).find_first_not_of("\r\n") ==
                             std::string_view::npos;
                    });
  return answer_.go_on_after(answer);
}

AnswerPiece AnswerStream::push(int32_t id) {
  if (channel_ == Channel::reasoning) {
    ++tokens_before_answer_;
    if (id != markers_.end_id) return {Channel::reasoning, reasoning_.push(id)};
    channel_ = Channel::answer;
    skipping_blank_ = true;
    return {Channel::reasoning, reasoning_.finish()};
  }
  if (begins_reasoning(id)) {
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
