#include "coordinator/chat_template/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "base/check.h"

namespace convoy::jinja {

namespace {

struct Decoded {
  char32_t value = 0;
  size_t size = 1;
  bool valid = true;
};

Decoded decode(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[offset + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const Decoded stray{0x110000u + lead, 1, false};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - offset < size) return stray;
  char32_t value = lead & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return stray;
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[size] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return stray;
  return {value, size, true};
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

using CaseFunction = void (*)(const char*, uint32_t, icu::StringPiece, icu::ByteSink&, icu::Edits*,
                              UErrorCode&);

std::string map_case(std::string_view text, CaseFunction function) {
  UErrorCode error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  function("", 0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr,
           error);
  CONVOY_CHECK(U_SUCCESS(error), u_errorName(error));
  return out;
}

}  // namespace

size_t code_point_size(std::string_view text, size_t offset) {
  return decode(text, offset).size;
}

char32_t code_point(std::string_view text, size_t offset) {
  return decode(text, offset).value;
}

std::optional<size_t> find_ill_formed(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = decode(text, at);
    if (!decoded.valid) return at;
    at += decoded.size;
  }
  return std::nullopt;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += code_point_size(text, at);
  return count;
}

size_t offset_of(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += code_point_size(text, at);
  return at;
}

void append_code_point(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c > 0x10FFFF) return false;
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    default:
      return true;
  }
}

std::string_view strip(std::string_view text, std::optional<std::string_view> chars,
                       StripSides sides) {
  const auto drops = [&](std::string_view character) {
    if (!chars) return is_space(code_point(character, 0));
    // Never matches inside another character: UTF-8 lead bytes are no continuation bytes.
    return chars->find(character) != std::string_view::npos;
  };
  if (sides.left) {
    while (!text.empty()) {
      const size_t size = code_point_size(text, 0);
      if (!drops(text.substr(0, size))) break;
      text.remove_prefix(size);
    }
  }
  if (sides.right) {
    while (!text.empty()) {
      size_t start = text.size() - 1;
      for (size_t back = 2; back <= std::min<size_t>(4, text.size()); ++back) {
        if (code_point_size(text, text.size() - back) == back) start = text.size() - back;
      }
      if (!drops(text.substr(start))) break;
      text.remove_suffix(text.size() - start);
    }
  }
  return text;
}

std::string to_upper(std::string_view text) {
  if (!is_ascii(text)) return map_case(text, &icu::CaseMap::utf8ToUpper);
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return out;
}

std::string to_lower(std::string_view text) {
  if (!is_ascii(text)) return map_case(text, &icu::CaseMap::utf8ToLower);
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string to_title(std::string_view character) {
  const char32_t c = code_point(character, 0);
  if (c > 0x10FFFF) return std::string(character);
  const auto title = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  if (title == c) return to_upper(character);
  std::string out;
  append_code_point(out, title);
  return out;
}

bool is_cased(char32_t c) {
  return c <= 0x10FFFF && u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
}
bool is_upper_case(char32_t c) {
  return c <= 0x10FFFF && u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0;
}
bool is_lower_case(char32_t c) {
  return c <= 0x10FFFF && u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0;
}
bool is_alphabetic(char32_t c) {
  return c <= 0x10FFFF && (U_MASK(u_charType(static_cast<UChar32>(c))) & U_GC_L_MASK) != 0;
}
bool is_digit(char32_t c) {
  return c <= 0x10FFFF && u_isdigit(static_cast<UChar32>(c)) != 0;
}

}  // namespace convoy::jinja
