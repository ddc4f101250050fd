// The regular expression of a pre-tokenizer: cuts text into the pieces that merges may not cross.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace convoy {

/// What one thread needs to match: PCRE2's match data and a JIT stack. Serves any pattern, one call
/// at a time.
class MatchScratch {
 public:
  MatchScratch();
  ~MatchScratch();
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

 private:
  friend class SplitPattern;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

/// A compiled pattern. Immutable, so usable from several threads, each with its own scratch.
/// Moved-from: only to be destroyed or assigned to.
class SplitPattern {
 public:
  /// Compiles a pattern written for Oniguruma (Ruby syntax), as tokenizer files hold it. The result
  /// splits exactly as Oniguruma does, or the pattern is refused: \s and \S become the White_Space
  /// class, and what PCRE2 would read differently (\w, \b, \h, \v, ^, $, nested classes, (?m),
  /// {,n}, ...) is an error that names it.
  static Result<SplitPattern> compile(std::string_view pattern);

  /// Appends the pieces of well-formed UTF-8 `text`, in order and without gaps: every match is a
  /// piece, and so is what lies between matches (Hugging Face's behaviour "Isolated"). The error is
  /// PCRE2's (its match limit, for example).
  Status split(std::string_view text, MatchScratch& scratch,
               std::vector<std::string_view>& pieces) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

/// `pattern` in PCRE2's syntax, as compile() reads it.
Result<std::string> to_pcre2_syntax(std::string_view pattern);

}  // namespace convoy
