#include "coordinator/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

// \w of Unicode's regular expressions (UTS #18, annex C).
bool is_word_character(char32_t c) {
  const auto code_point = static_cast<UChar32>(c);
  if (u_hasBinaryProperty(code_point, UCHAR_ALPHABETIC) ||
      u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL)) {
    return true;
  }
  return (U_GET_GC_MASK(code_point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool word_touches(std::string_view text, size_t begin, size_t end) {
  size_t size_bytes = 0;
  if (begin > 0 &&
      is_word_character(code_point_at(text, previous_code_point(text, begin), size_bytes)))
    return true;
  return end < text.size() && is_word_character(code_point_at(text, end, size_bytes));
}

size_t white_space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    size_t size_bytes = 0;
    const size_t previous = previous_code_point(text, end);
    if (!is_white_space(code_point_at(text, previous, size_bytes))) break;
    end = previous;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t size_bytes = 0;
    if (!is_white_space(code_point_at(text, begin, size_bytes))) break;
    begin += size_bytes;
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &AddedToken::content);
  for (const auto& token : tokens_) first_byte_[static_cast<uint8_t>(token.content.front())] = true;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t offset) const {
  auto begin = tokens_.begin();
  auto end = tokens_.end();
  const AddedToken* longest = nullptr;
  // [begin, end) holds the tokens that share the first `depth` bytes with the text; a token of just
  // these bytes is their first.
  for (size_t depth = 0; begin != end; ++depth) {
    if (begin->content.size() == depth) {
      longest = &*begin++;
      if (begin == end) break;
    }
    if (offset + depth >= text.size()) break;
    const auto byte = static_cast<uint8_t>(text[offset + depth]);
    const auto byte_of = [depth](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[depth]);
    };
    begin =
        std::partition_point(begin, end, [&](const auto& token) { return byte_of(token) < byte; });
    end =
        std::partition_point(begin, end, [&](const auto& token) { return byte_of(token) == byte; });
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<TextPart>& parts) const {
  const auto push_text = [&](size_t begin, size_t end) {
    if (begin < end) parts.push_back({-1, text.substr(begin, end - begin)});
  };
  size_t done = 0;  // bytes of text that are in parts
  size_t at = 0;
  while (at < text.size()) {
    const AddedToken* token =
        first_byte_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->single_word && word_touches(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(white_space_begin(text, begin), done);
    if (token->rstrip) end = white_space_end(text, end);
    push_text(done, begin);
    parts.push_back({token->id, text.substr(begin, end - begin)});
    done = std::max(done, end);
  }
  push_text(done, text.size());
}

}  // namespace convoy
