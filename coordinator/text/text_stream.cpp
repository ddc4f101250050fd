#include "coordinator/text/text_stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace convoy {

Status check_stop_strings(std::span<const std::string> stop_strings) {
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    if (stop_strings[i].empty()) return Error{fmt::format("stop string {} is empty", i)};
    if (const auto bad = find_invalid_utf8(stop_strings[i])) {
      return Error{
          fmt::format("stop string {} is not valid UTF-8: byte {} begins no character", i, *bad)};
    }
  }
  return {};
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer) {
  for (auto& text : stop_strings) {
    if (!check_stop_strings({&text, 1})) continue;
    StopString stop;
    stop.fallback.assign(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      uint32_t border = stop.fallback[i - 1];
      while (border > 0 && text[i] != text[border]) border = stop.fallback[border - 1];
      stop.fallback[i] = border + (text[i] == text[border] ? 1 : 0);
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

bool TextStream::go_on_after(std::span<const int32_t> ids) {
  going_on_ = true;
  for (const int32_t id : ids) {
    completed_ = false;
    push(id);
  }
  going_on_ = false;
  shown_bytes_ = held_.size();
  return completed_;
}

std::string TextStream::push(int32_t id) {
  if (stopped_ || finished_) return {};
  for (const char byte : tokenizer_.token_bytes(id, false)) {
    step(static_cast<uint8_t>(byte));
    if (stopped_) break;
  }
  ++pushed_tokens_;
  if (stopped_) return release(0);
  kept_tokens_ = pushed_tokens_;
  // What the stream ends in and a stop string begins with is held back.
  size_t keep = 0;
  for (const auto& stop : stops_) keep = std::max<size_t>(keep, stop.matched);
  return release(keep);
}

std::string TextStream::finish() {
  if (stopped_ || finished_) return {};
  finished_ = true;
  if (assembler_.pending()) {
    append_text(kReplacementCharacter, character_tokens_[0],
                character_tokens_[character_bytes_ - 1]);
  }
  return release(0);
}

// One byte of the token now being pushed.
void TextStream::step(uint8_t byte) {
  const auto result = assembler_.push(byte);
  if (result.abandoned) {
    append_text(kReplacementCharacter, character_tokens_[0],
                character_tokens_[character_bytes_ - 1]);
    character_bytes_ = 0;
    if (stopped_) return;
  }
  if (result.invalid) {
    append_text(kReplacementCharacter, pushed_tokens_, pushed_tokens_);
    return;
  }
  character_tokens_[character_bytes_++] = pushed_tokens_;
  if (!result.complete) return;
  const auto character = assembler_.character();
  for (size_t i = 0; i < character.size() && !stopped_; ++i)
    append(character[i], character_tokens_[i]);
  character_bytes_ = 0;
}

void TextStream::append_text(std::string_view text, int32_t first_token, int32_t last_token) {
  for (size_t i = 0; i < text.size() && !stopped_; ++i)
    append(text[i], i == 0 ? first_token : last_token);
}

void TextStream::append(char byte, int32_t token) {
  held_ += byte;
  held_tokens_.push_back(token);
  size_t completed = 0;
  for (auto& stop : stops_) {
    while (stop.matched > 0 && stop.text[stop.matched] != byte)
      stop.matched = stop.fallback[stop.matched - 1];
    if (stop.text[stop.matched] == byte) ++stop.matched;
    if (stop.matched < stop.text.size()) continue;
    completed = std::max(completed, stop.text.size());
    stop.matched = stop.fallback.back();  // where going_on_, what follows may complete another
  }
  if (completed == 0) return;
  if (going_on_) {
    completed_ = true;
  } else {
    stop(completed);
  }
}

void TextStream::stop(size_t stop_bytes) {
  stopped_ = true;
  const size_t text_bytes = held_.size() - stop_bytes;
  const int32_t stop_token = held_tokens_[text_bytes];
  const int32_t text_token = text_bytes > 0 ? held_tokens_[text_bytes - 1] : returned_token_;
  kept_tokens_ = text_token == stop_token ? stop_token + 1 : stop_token;
  held_.resize(text_bytes);
  held_tokens_.resize(text_bytes);
}

// Returns the held text but for its last `keep_bytes`.
std::string TextStream::release(size_t keep_bytes) {
  const size_t count = held_.size() - keep_bytes;
  if (count == 0) return {};
  std::string text = held_.substr(0, count);
  returned_token_ = held_tokens_[count - 1];
  held_.erase(0, count);
  held_tokens_.erase(held_tokens_.begin(), held_tokens_.begin() + static_cast<ptrdiff_t>(count));
  const size_t shown = std::min(shown_bytes_, count);
  shown_bytes_ -= shown;
  return text.substr(shown);
}

}  // namespace convoy
