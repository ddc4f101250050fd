// Tokens to text while they are generated: whole characters only, and nothing that a stop string
// may still take back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/utf8.h"

namespace convoy {

/// Whether every stop string is non-empty, well-formed UTF-8; the error says which one is not. To
/// be asked where a request comes in.
Status check_stop_strings(std::span<const std::string> stop_strings);

/// The text of one generation. Joined, what push() and finish() return is Tokenizer::decode(ids,
/// false) of the tokens pushed, cut before the first stop string. Special tokens have no text.
///
/// The stop string that is completed first in the text ends it (of several that are completed by
/// the same character, the longest), so the result depends on the text alone and not on how it was
/// cut into tokens.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream. Stop strings that check_stop_strings refuses are never
  /// found.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings);

  /// Before the first push(): this text goes on behind that of `ids`, which was shown. Stop strings
  /// that begin in it are found, and a character that it leaves incomplete may be completed.
  /// Whether a stop string is completed by the last of `ids`; those do not end this text.
  bool go_on_after(std::span<const int32_t> ids);

  /// Adds one token; returns the text that may be shown now. It is well-formed UTF-8 and never
  /// holds a part of a character, nor text that may still be the beginning of a stop string. Empty
  /// once stopped() or finished.
  std::string push(int32_t id);

  /// Ends the text: returns what was held back; an incomplete character becomes U+FFFD. Empty once
  /// stopped() and when called again.
  std::string finish();

  /// Whether a stop string was completed. The text is cut before it.
  bool stopped() const { return stopped_; }

  /// How many of the tokens pushed belong to the text shown. Until a stop string is completed that
  /// is all of them. Then it is the tokens before the one that holds the first byte of the stop
  /// string, and that one too when it also holds the last byte of the text before it. So decode()
  /// of the first kept_tokens() ids begins with the text returned, and holds more than that only
  /// when a token lies across the cut. Special tokens before the stop string are kept. Tokens
  /// pushed after the stop are not counted. Those of go_on_after() are.
  int kept_tokens() const { return kept_tokens_; }

 private:
  struct StopString {
    std::string text;
    std::vector<uint32_t> fallback;  // Knuth-Morris-Pratt: longest border of each prefix
    uint32_t matched = 0;            // bytes of text that the stream now ends in
  };

  // One byte of text; the tokens that hold its first and its last source byte.
  void append(char byte, int32_t token);
  void append_text(std::string_view text, int32_t first_token, int32_t last_token);
  void step(uint8_t byte);
  void stop(size_t stop_bytes);
  std::string release(size_t keep_bytes);

  const Tokenizer& tokenizer_;
  std::vector<StopString> stops_;
  Utf8Assembler assembler_;
  int32_t character_tokens_[4] = {};  // tokens that hold the bytes of the incomplete character
  uint8_t character_bytes_ = 0;
  std::string held_;                  // text not returned yet
  std::vector<int32_t> held_tokens_;  // the token of each byte of held_
  size_t shown_bytes_ = 0;            // of held_: the text before this one ended with them
  int32_t returned_token_ = -1;       // the token of the last byte returned
  int32_t pushed_tokens_ = 0;
  int32_t kept_tokens_ = 0;
  bool going_on_ = false;   // within go_on_after()
  bool completed_ = false;  // within it: the last token completed a stop string
  bool stopped_ = false;
  bool finished_ = false;
};

}  // namespace convoy
