#include "coordinator/chat_template/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/exit_code.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

constexpr size_t kMaxSourceBytes = 1 << 20;

std::string normalize_newlines(std::string text) {
  if (text.find('\r') != std::string::npos) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\r') {
        out += text[i];
      } else {
        out += '\n';
        if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
      }
    }
    text = std::move(out);
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_part(char c) {
  return is_name_start(c) || is_decimal(c);
}

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text()) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(TokenKind::end, text_.size());
    return std::move(tokens_);
  }

 private:
  bool here(std::string_view expected) const { return text_.substr(at_).starts_with(expected); }

  void add(TokenKind kind, size_t offset, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.offset = offset;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  void skip_spaces() {
    while (at_ < text_.size() && is_space(code_point(text_, at_)))
      at_ += code_point_size(text_, at_);
  }

  // The end of a tag was read up to `at_`: removes what its sign and trim_blocks remove behind it.
  void finish_tag(bool strips, bool trims_newline) {
    if (strips) {
      skip_spaces();
    } else if (trims_newline && here("\n")) {
      ++at_;
    }
    line_starting_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  // Removes from data what the sign of the tag behind it and lstrip_blocks remove.
  std::string_view trimmed(std::string_view data, char sign, bool is_variable) const {
    if (sign == '-') return strip(data, std::nullopt, {.left = false, .right = true});
    if (sign == '+' || is_variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return data;
    const auto last = data.substr(line);
    return strip(last, std::nullopt, {}).empty() ? data.substr(0, line) : data;
  }

  char take_sign() {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c != '-' && c != '+') return '\0';
    ++at_;
    return c;
  }

  void add_data(size_t offset, std::string_view data) {
    if (!data.empty()) add(TokenKind::data, offset, std::string(data));
  }

  void read_data() {
    const size_t start = at_;
    size_t tag = start;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
        add_data(start, text_.substr(start));
        at_ = text_.size();
        return;
      }
      const char next = text_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    at_ = tag + 2;
    const char kind = text_[tag + 1];
    const char sign = take_sign();
    add_data(start, trimmed(text_.substr(start, tag - start), sign, kind == '{'));
    if (kind == '#') return read_comment(tag);
    if (kind == '%' && read_raw(tag)) return;
    add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, tag);
    read_tag(tag, kind == '{');
  }

  void read_comment(size_t tag) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) source_.fail(tag, "the comment has no end");
    const char before = end > at_ ? text_[end - 1] : '\0';
    at_ = end + 2;
    finish_tag(before == '-', before != '+');
  }

  // After "{%" and its sign: "raw %}" and the text up to "{% endraw %}". False when it is another
  // block.
  bool read_raw(size_t tag) {
    const size_t before = at_;
    skip_spaces();
    if (here("raw")) {
      at_ += 3;
      skip_spaces();
      if (here("-%}") || here("%}")) {
        const bool strips = here("-");
        at_ += strips ? 3 : 2;
        finish_tag(strips, false);
        read_raw_text(tag);
        return true;
      }
    }
    at_ = before;
    return false;
  }

  void read_raw_text(size_t tag) {
    const size_t start = at_;
    for (size_t end = text_.find("{%", start); end != std::string_view::npos;
         end = text_.find("{%", end + 1)) {
      at_ = end + 2;
      const char sign = take_sign();
      skip_spaces();
      if (!here("endraw")) continue;
      at_ += 6;
      skip_spaces();
      const char last = at_ < text_.size() && text_[at_] != '%' ? take_sign() : '\0';
      if (!here("%}")) continue;
      at_ += 2;
      add_data(start, trimmed(text_.substr(start, end - start), sign, false));
      finish_tag(last == '-', last != '+');
      return;
    }
    source_.fail(tag, "the raw block has no end");
  }

  bool read_tag_end(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    const bool signed_end =
        (here("-") || (!is_variable && here("+"))) && text_.substr(at_ + 1).starts_with(close);
    if (!signed_end && !here(close)) return false;
    const char sign = signed_end ? text_[at_] : '\0';
    add(is_variable ? TokenKind::variable_end : TokenKind::block_end, at_);
    at_ += signed_end ? 3 : 2;
    finish_tag(sign == '-', !is_variable && sign == '\0');
    return true;
  }

  void read_tag(size_t tag, bool is_variable) {
    std::string open;  // the closing brackets that are waited for
    for (;;) {
      if (open.empty() && read_tag_end(is_variable)) return;
      if (at_ >= text_.size())
        source_.fail(tag, is_variable ? "\"{{\" is never closed" : "\"{%\" is never closed");
      const char c = text_[at_];
      if (is_space(code_point(text_, at_))) {
        skip_spaces();
      } else if (is_decimal(c)) {
        read_number();
      } else if (is_name_start(c)) {
        const size_t start = at_;
        while (at_ < text_.size() && is_name_part(text_[at_])) ++at_;
        add(TokenKind::name, start, std::string(text_.substr(start, at_ - start)));
      } else if (c == '\'' || c == '"') {
        read_text();
      } else {
        read_symbol(open);
      }
    }
  }

  // Digits with single underscores between them.
  void skip_digits() {
    while (at_ < text_.size() &&
           (is_decimal(text_[at_]) ||
            (text_[at_] == '_' && at_ + 1 < text_.size() && is_decimal(text_[at_ + 1]))))
      ++at_;
  }

  void read_number() {
    const size_t start = at_;
    if (here("0x") || here("0X") || here("0b") || here("0B") || here("0o") || here("0O"))
      source_.fail(start, "numbers in other bases than ten are not supported");
    skip_digits();
    const bool after_dot = start > 0 && text_[start - 1] == '.';
    bool is_real = false;
    if (!after_dot && here(".") && at_ + 1 < text_.size() && is_decimal(text_[at_ + 1])) {
      is_real = true;
      ++at_;
      skip_digits();
    }
    if (!after_dot && (here("e") || here("E"))) {
      size_t digit = at_ + 1;
      if (digit < text_.size() && (text_[digit] == '+' || text_[digit] == '-')) ++digit;
      if (digit < text_.size() && is_decimal(text_[digit])) {
        is_real = true;
        at_ = digit;
        skip_digits();
      }
    }
    std::string digits(text_.substr(start, at_ - start));
    std::erase(digits, '_');
    add(is_real ? TokenKind::real : TokenKind::integer, start);
    if (is_real) {
      const auto read =
          std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().real);
      if (read.ec != std::errc()) source_.fail(start, "the number is out of range");
      return;
    }
    if (digits.size() > 1 && digits.find_first_not_of('0') != std::string::npos && digits[0] == '0')
      source_.fail(start, "a number must not begin with 0");
    for (const char digit : digits) {
      Integer& value = tokens_.back().integer;
      if (__builtin_mul_overflow(value, Integer{10}, &value) ||
          __builtin_add_overflow(value, Integer{digit - '0'}, &value))
        source_.fail(start, "the integer does not fit 128 bits");
    }
  }

  void read_text() {
    const size_t start = at_;
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] != '\\') {
        value += text_[at_++];
        continue;
      }
      if (at_ + 1 >= text_.size()) break;
      ++at_;
      read_escape(value);
    }
    if (at_ >= text_.size()) source_.fail(start, "the text has no closing quote");
    ++at_;
    add(TokenKind::text, start, std::move(value));
  }

  // After the backslash.
  void read_escape(std::string& value) {
    const char c = text_[at_];
    constexpr std::string_view kLetters = "\n\\'\"abfnrtv";
    constexpr std::string_view kValues = "\n\\'\"\a\b\f\n\r\t\v";
    const size_t place = kLetters.find(c);
    if (c == '\n') {
      ++at_;
    } else if (place != std::string_view::npos) {
      value += kValues[place];
      ++at_;
    } else if (c >= '0' && c <= '7') {
      read_code(value, 8, 1, 3);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ++at_;
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      read_code(value, 16, digits, digits);
    } else if (c == 'N') {
      source_.fail(at_ - 1, "\\N{...} is not supported");
    } else {
      value += '\\';  // Python keeps the backslash of an unknown escape
    }
  }

  void read_code(std::string& value, int base, size_t least, size_t most) {
    const size_t start = at_;
    uint32_t code = 0;
    const char* first = text_.data() + at_;
    const char* last = text_.data() + std::min(at_ + most, text_.size());
    const auto read = std::from_chars(first, last, code, base);
    const auto count = static_cast<size_t>(read.ptr - first);
    if (read.ec != std::errc() || count < least)
      source_.fail(start, "the escape needs more digits");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      source_.fail(start, "the escape is no Unicode character");
    append_code_point(value, code);
    at_ += count;
  }

  void read_symbol(std::string& open) {
    constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                             "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                             ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const auto symbol : kSymbols) {
      if (!here(symbol)) continue;
      const char c = symbol[0];
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) source_.fail(at_, fmt::format("unexpected \"{}\"", c));
        if (open.back() != c)
          source_.fail(at_, fmt::format("unexpected \"{}\", expected \"{}\"", c, open.back()));
        open.pop_back();
      }
      add(TokenKind::symbol, at_, std::string(symbol));
      at_ += symbol.size();
      return;
    }
    source_.fail(at_, fmt::format("unexpected character \"{}\"",
                                  text_.substr(at_, code_point_size(text_, at_))));
  }

  const Source& source_;
  std::string_view text_;
  size_t at_ = 0;
  bool line_starting_ = true;  // whether the tag before the current data ended its line
  std::vector<Token> tokens_;
};

}  // namespace

Source::Source(std::string text, std::string name) : name_(std::move(name)) {
  if (text.size() > kMaxSourceBytes)
    throw StartError(fmt::format("{}: the template has {} bytes; at most {} are allowed", name_,
                                 text.size(), kMaxSourceBytes));
  const auto bad = find_ill_formed(text);
  text_ = std::move(text);
  if (bad) fail(*bad, "the template is not valid UTF-8");
  text_ = normalize_newlines(std::move(text_));
}

std::string Source::place(size_t offset) const {
  const auto before = std::string_view(text_).substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column =
      count_code_points(newline == std::string_view::npos ? before : before.substr(newline + 1)) +
      1;
  return fmt::format("{}: line {}, column {}", name_, line, column);
}

void Source::fail(size_t offset, std::string_view problem) const {
  throw StartError(fmt::format("{}: {}", place(offset), problem));
}

std::vector<Token> tokenize(const Source& source) {
  return Lexer(source).run();
}

}  // namespace convoy::jinja
