#include "coordinator/text/utf8.h"

#include <cstring>

namespace convoy {
namespace {

struct Lead {
  uint8_t size = 0;  // 0: no character begins with this byte
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

// Table 3-7 of the Unicode standard: the second byte's range excludes overlong forms, surrogates
// and values that are too large.
constexpr Lead classify(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

constexpr uint64_t kHighBits = 0x8080808080808080;

// Offset of the first byte at or after `offset` that is not ASCII.
size_t skip_ascii(std::string_view text, size_t offset) {
  while (offset + sizeof(uint64_t) <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + offset, sizeof word);
    if ((word & kHighBits) != 0) break;
    offset += sizeof word;
  }
  while (offset < text.size() && static_cast<uint8_t>(text[offset]) < 0x80) ++offset;
  return offset;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t offset = 0;
  while ((offset = skip_ascii(text, offset)) < text.size()) {
    const Lead lead = classify(static_cast<uint8_t>(text[offset]));
    if (lead.size == 0 || offset + lead.size > text.size()) return offset;
    const auto second = static_cast<uint8_t>(text[offset + 1]);
    if (second < lead.second_low || second > lead.second_high) return offset;
    for (size_t i = 2; i < lead.size; ++i) {
      if ((static_cast<uint8_t>(text[offset + i]) & 0xC0) != 0x80) return offset;
    }
    offset += lead.size;
  }
  return std::nullopt;
}

bool is_ascii(std::string_view text) {
  return skip_ascii(text, 0) == text.size();
}

char32_t code_point_at(std::string_view text, size_t offset, size_t& size_bytes) {
  const auto lead = static_cast<uint8_t>(text[offset]);
  size_bytes = classify(lead).size;
  if (size_bytes <= 1) return lead;
  auto value = static_cast<char32_t>(lead & (0x7F >> size_bytes));
  for (size_t i = 1; i < size_bytes; ++i) {
    value = (value << 6) | static_cast<char32_t>(static_cast<uint8_t>(text[offset + i]) & 0x3F);
  }
  return value;
}

size_t previous_code_point(std::string_view text, size_t end) {
  size_t offset = end - 1;
  while (offset > 0 && (static_cast<uint8_t>(text[offset]) & 0xC0) == 0x80) --offset;
  return offset;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

Utf8Assembler::Step Utf8Assembler::push(uint8_t byte) {
  if (!pending()) return begin(byte);
  if (byte < next_low_ || byte > next_high_) {
    Step step = begin(byte);
    step.abandoned = true;
    return step;
  }
  bytes_[size_++] = static_cast<char>(byte);
  next_low_ = 0x80;
  next_high_ = 0xBF;
  return {.complete = size_ == need_};
}

Utf8Assembler::Step Utf8Assembler::begin(uint8_t byte) {
  const Lead lead = classify(byte);
  if (lead.size == 0) {
    reset();
    return {.invalid = true};
  }
  bytes_[0] = static_cast<char>(byte);
  size_ = 1;
  need_ = lead.size;
  next_low_ = lead.second_low;
  next_high_ = lead.second_high;
  return {.complete = size_ == need_};
}

std::string to_valid_utf8(std::string bytes) {
  const auto bad = find_invalid_utf8(bytes);
  if (!bad) return bytes;
  std::string text = bytes.substr(0, *bad);
  Utf8Assembler assembler;
  for (size_t i = *bad; i < bytes.size(); ++i) {
    const auto step = assembler.push(static_cast<uint8_t>(bytes[i]));
    if (step.abandoned) text += kReplacementCharacter;
    if (step.invalid) text += kReplacementCharacter;
    if (step.complete) text += assembler.character();
  }
  if (assembler.pending()) text += kReplacementCharacter;
  return text;
}

}  // namespace convoy
