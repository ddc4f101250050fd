#include "coordinator/text/split_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <new>

#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

// PCRE2's own \s also has U+180E, which left White_Space in Unicode 6.3.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// The complement is written out because a class cannot contain a negated class.
constexpr std::string_view kNotWhiteSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 8 * 1024 * 1024;

bool is_ascii_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Letters after a backslash that mean the same to both engines. An escaped sign is itself in both.
bool same_escape(char c) {
  return std::string_view("rntfpPxdD").find(c) != std::string_view::npos ||
         !is_ascii_letter_or_digit(c);
}

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Walks a pattern once. What the two engines read alike is copied, the white space classes are
// written out, the rest is an error.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (at_ < pattern_.size() && problem_.empty()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_member(c);
      } else {
        construct(c);
      }
    }
    if (!problem_.empty()) return Error{problem_};
    return out_;
  }

 private:
  bool next_is(std::string_view text, size_t ahead = 1) const {
    return at_ + ahead <= pattern_.size() && pattern_.substr(at_ + ahead).starts_with(text);
  }

  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void refuse(size_t count) {
    problem_ = fmt::format("the pattern's \"{}\" at byte {} is not supported",
                           pattern_.substr(at_, count), at_);
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) return refuse(1);
    const char c = pattern_[at_ + 1];
    const bool starts_range = in_class_ && next_is("-", 2) && !next_is("-]", 2);
    if (c == 's' || c == 'S') {
      if (starts_range || dash_before_) return refuse(3);
      const auto members = c == 's' ? kWhiteSpace : kNotWhiteSpace;
      out_ += in_class_ ? std::string(members) : fmt::format("[{}]", members);
      at_ += 2;
    } else if (!same_escape(c)) {
      return refuse(2);
    } else if (next_is("{", 2) && std::string_view("pPx").find(c) != std::string_view::npos) {
      const size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) return refuse(3);
      copy(close + 1 - at_);
    } else {
      copy(2);
    }
    dash_before_ = false;
  }

  void class_member(char c) {
    if (c == '[' || (c == '&' && next_is("&"))) return refuse(2);
    if (c == ']') {
      if (at_ == class_start_) return refuse(1);
      in_class_ = false;
    }
    dash_before_ = c == '-' && at_ != class_start_;
    copy(1);
  }

  void construct(char c) {
    if (c == '[') {
      in_class_ = true;
      dash_before_ = false;
      copy(next_is("^") ? 2 : 1);
      class_start_ = at_;
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      quantifier();
    } else if (c == '^' || c == '$') {
      // Oniguruma's match at every line, PCRE2's at the ends of the text.
      refuse(1);
    } else {
      copy(1);
    }
  }

  void group() {
    constexpr std::array<std::string_view, 6> kOpenings = {"?:", "?=", "?!", "?<=", "?<!", "?i:"};
    if (next_is("*")) return refuse(2);
    if (!next_is("?")) return copy(1);
    for (const auto opening : kOpenings) {
      if (next_is(opening)) return copy(1 + opening.size());
    }
    refuse(3);
  }

  // {,n} and {n,m}+ mean different things to the two engines.
  void quantifier() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos || next_is(",")) return refuse(2);
    if (close + 1 < pattern_.size() && pattern_[close + 1] == '+') return refuse(close + 2 - at_);
    copy(close + 1 - at_);
  }

  std::string_view pattern_;
  std::string out_;
  std::string problem_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_start_ = 0;    // where the first member of the class stands
  bool dash_before_ = false;  // the member before is a dash that may make a range
};

}  // namespace

Result<std::string> to_pcre2_syntax(std::string_view pattern) {
  return Rewriter(pattern).run();
}

MatchScratch::MatchScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
    throw std::bad_alloc();
  }
  // Without a stack of its own (no JIT here) PCRE2 uses its default.
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

MatchScratch::~MatchScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

void SplitPattern::Free::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}

Result<SplitPattern> SplitPattern::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{fmt::format("the pattern has {} bytes, at most {} are allowed", pattern.size(),
                             kMaxPatternBytes)};
  }
  const auto rewritten = to_pcre2_syntax(pattern);
  if (!rewritten) return Error{rewritten.error()};
  const std::string& text = rewritten.value();
  int code = 0;
  PCRE2_SIZE offset = 0;
  SplitPattern result;
  result.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                                   nullptr));
  if (!result.code_)
    return Error{fmt::format("the pattern does not compile: {}", error_text(code))};
  // Where the machine forbids writable code pages, matching falls back to the interpreter.
  result.jit_ = pcre2_jit_compile(result.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  return result;
}

Status SplitPattern::split(std::string_view text, MatchScratch& scratch,
                           std::vector<std::string_view>& pieces) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data_);
  size_t covered = 0;  // bytes of text that are in pieces
  size_t search = 0;
  bool after_match = false;  // a match ended at `covered`
  while (search < text.size()) {
    const int found = jit_ ? pcre2_jit_match(code_.get(), subject, text.size(), search,
                                             PCRE2_NO_UTF_CHECK, scratch.data_, scratch.context_)
                           : pcre2_match(code_.get(), subject, text.size(), search,
                                         PCRE2_NO_UTF_CHECK, scratch.data_, scratch.context_);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return Error{fmt::format("the tokenizer's pattern failed near byte {} of {}: {}", search,
                               text.size(), error_text(found))};
    }
    const size_t begin = ends[0];
    const size_t end = ends[1];
    if (begin < covered || end < begin) return Error{"the tokenizer's pattern matched backwards"};
    if (begin == end && after_match && end == covered) {
      // An empty match right after a match does not count: look from the next character.
      size_t size_bytes = 0;
      code_point_at(text, search, size_bytes);
      search += size_bytes;
      continue;
    }
    if (covered < begin) pieces.push_back(text.substr(covered, begin - covered));
    if (begin < end) pieces.push_back(text.substr(begin, end - begin));
    covered = search = end;
    after_match = true;
  }
  if (covered < text.size()) pieces.push_back(text.substr(covered));
  return {};
}

}  // namespace convoy
