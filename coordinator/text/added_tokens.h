// Added tokens (control markers and the like): found in text as whole strings, before the text is
// cut into pieces.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// An entry of added_tokens in tokenizer.json, or of added_tokens_decoder in tokenizer_config.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;       ///< well-formed UTF-8, not empty
  bool special = false;      ///< hidden from decoded text
  bool normalized = false;   ///< looked for in the normalised text instead of the raw text
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool single_word = false;  ///< only where no word character touches it
};

/// A part of a text: one added token, or ordinary text (id -1).
struct TextPart {
  int32_t id = -1;
  std::string_view text;
};

/// Finds the leftmost added token, the longest where several begin at one place, then goes on
/// behind it.
class AddedTokenMatcher {
 public:
  /// No two of `tokens` may have the same content.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  /// Appends the parts of well-formed `text` in order; empty parts are left out.
  void split(std::string_view text, std::vector<TextPart>& parts) const;

 private:
  // The longest token that begins at `offset`, or nullptr.
  const AddedToken* longest_at(std::string_view text, size_t offset) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> first_byte_{};
};

}  // namespace convoy
