// A template's source as tokens, with Jinja's rules for white space in Hugging Face's settings:
// trim_blocks and lstrip_blocks on, one newline at the very end dropped, \r\n and \r read as \n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

enum class TokenKind {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  text,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  size_t offset = 0;  ///< of its first byte in the source, for messages
  std::string text;   ///< data, names, symbols; the value of a text literal
  Integer integer = 0;
  double real = 0;
};

/// A source and its name. Errors are StartError "<name>: line 3, column 7: <problem>"; columns
/// count code points.
class Source {
 public:
  /// Normalises newlines. StartError when the text is not well-formed UTF-8 or larger than 1 MiB.
  Source(std::string text, std::string name);

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }
  /// "<name>: line 3, column 7"
  std::string place(size_t offset) const;
  [[noreturn]] void fail(size_t offset, std::string_view problem) const;

 private:
  std::string text_;
  std::string name_;
};

/// The last token is `end`. StartError as Source::fail.
std::vector<Token> tokenize(const Source& source);

}  // namespace convoy::jinja
