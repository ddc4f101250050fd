// UTF-8: checking whole texts, reading code points of checked texts, and assembling characters from
// a byte stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// U+FFFD, which stands for bytes that are no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Offset of the first byte that begins no well-formed sequence (overlong forms, surrogates, values
/// above U+10FFFF and truncation included); nothing when the whole text is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view text);

bool is_ascii(std::string_view text);

/// The code point that begins at `offset` of well-formed `text`; `size_bytes` receives its length.
char32_t code_point_at(std::string_view text, size_t offset, size_t& size_bytes);

/// Offset of the code point that ends before `end` (> 0) of well-formed `text`.
size_t previous_code_point(std::string_view text, size_t end);

/// Unicode property White_Space: 25 code points.
bool is_white_space(char32_t code_point);

/// Assembles characters from bytes that arrive one at a time. Ill-formed bytes become U+FFFD, one
/// for each maximal subpart (Unicode 3.9, "U+FFFD substitution of maximal subparts"; what Rust's
/// from_utf8_lossy does).
class Utf8Assembler {
 public:
  /// What one byte settled, in this order.
  struct Step {
    bool abandoned = false;  ///< the bytes pending before this one are no character: one U+FFFD
    bool invalid = false;    ///< this byte alone is no character: one U+FFFD
    bool complete = false;   ///< this byte completed character()
  };
  Step push(uint8_t byte);

  /// The character just completed; valid until the next push.
  std::string_view character() const { return {bytes_, size_}; }
  /// Whether an incomplete character waits for further bytes.
  bool pending() const { return size_ < need_; }
  /// Drops the incomplete character.
  void reset() { size_ = need_ = 0; }

 private:
  Step begin(uint8_t byte);

  char bytes_[4] = {};
  uint8_t size_ = 0;
  uint8_t need_ = 0;  // length the lead byte asks for; equal to size_ when nothing is pending
  uint8_t next_low_ = 0x80;  // what the next byte may be
  uint8_t next_high_ = 0xBF;
};

/// `bytes` as well-formed UTF-8, by the rule of Utf8Assembler.
std::string to_valid_utf8(std::string bytes);

}  // namespace convoy
