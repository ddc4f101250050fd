// Texts as Python sees them, that is, as sequences of code points, kept in UTF-8. A byte that is no
// well-formed UTF-8 counts as one code point by itself.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace convoy::jinja {

/// Bytes of the code point at `offset` (< text.size()): 1 to 4.
size_t code_point_size(std::string_view text, size_t offset);

/// The code point at `offset` (< text.size()); for a stray byte its value + 0x110000.
char32_t code_point(std::string_view text, size_t offset);

/// Offset of the first byte that begins no well-formed sequence.
std::optional<size_t> find_ill_formed(std::string_view text);

size_t count_code_points(std::string_view text);

/// Byte offset of code point `index`; text.size() when there are fewer.
size_t offset_of(std::string_view text, size_t index);

/// Appends `c` (a code point that is no surrogate, up to U+10FFFF).
void append_code_point(std::string& text, char32_t c);

/// str.isspace() for one code point.
bool is_space(char32_t c);

/// str.isprintable() for one code point.
bool is_printable(char32_t c);

/// str.strip(): `chars` absent removes white space, else the code points it holds.
struct StripSides {
  bool left = true;
  bool right = true;
};
std::string_view strip(std::string_view text, std::optional<std::string_view> chars,
                       StripSides sides);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// One code point in title case.
std::string to_title(std::string_view character);
/// A letter that has case, as str.title() and str.islower() need it.
bool is_cased(char32_t c);
bool is_upper_case(char32_t c);
bool is_lower_case(char32_t c);
bool is_alphabetic(char32_t c);
bool is_digit(char32_t c);

}  // namespace convoy::jinja
