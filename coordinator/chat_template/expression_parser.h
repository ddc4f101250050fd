// Tokens to expressions, by Jinja's grammar (a filter binds tighter than arithmetic, "is" as tight
// as a filter).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coordinator/chat_template/ast.h"
#include "coordinator/chat_template/lexer.h"
#include "coordinator/chat_template/parser.h"

namespace convoy::jinja {

class ExpressionParser {
 public:
  ExpressionParser(const Source& source, std::vector<Token> tokens, Syntax& syntax);

 protected:
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& advance() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  static bool is_symbol(const Token& token, std::string_view symbol) {
    return token.kind == TokenKind::symbol && token.text == symbol;
  }
  static bool is_word(const Token& token, std::string_view word) {
    return token.kind == TokenKind::name && token.text == word;
  }
  bool at_symbol(std::string_view symbol) const { return is_symbol(current(), symbol); }
  bool at_word(std::string_view word) const { return is_word(current(), word); }
  bool skip_symbol(std::string_view symbol);
  bool skip_word(std::string_view word);
  void expect_symbol(std::string_view symbol);
  void expect_word(std::string_view word);
  const Token& expect_kind(TokenKind kind);
  [[noreturn]] void fail_unexpected(std::string_view expected) const;
  [[noreturn]] void fail(size_t offset, std::string_view problem) const {
    source_.fail(offset, problem);
  }

  NameId intern(std::string_view name);
  /// For assignments, parameters and loop variables.
  NameId parse_new_name();

  const Expression* parse_expression(bool with_condition = true);
  /// One expression, or several with commas between them as a tuple.
  const Expression* parse_tuple(bool with_condition = true, bool parenthesized = false);
  /// "filter(arguments) | filter..." applied to `value`; the current token is the first filter's
  /// name.
  const Expression* parse_filters(const Expression* value);
  std::vector<Parameter> parse_parameters();
  const Expression* add(Expression expression);

  /// One level of nesting while it exists.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxParseDepth) parser_.fail_nesting();
    }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ~Nesting() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

  const Source& source_;
  Syntax& syntax_;

 private:
  [[noreturn]] void fail_nesting() const;
  const Expression* parse_or();
  const Expression* parse_and();
  const Expression* parse_not();
  const Expression* parse_comparison();
  const Expression* parse_sum();
  const Expression* parse_concatenation();
  const Expression* parse_product();
  const Expression* parse_power();
  const Expression* parse_unary(bool with_filter = true);
  const Expression* parse_primary();
  const Expression* parse_name();
  const Expression* parse_list();
  const Expression* parse_dict();
  const Expression* parse_postfix(const Expression* value);
  const Expression* parse_filters_and_tests(const Expression* value);
  const Expression* parse_subscript(const Expression* value);
  const Expression* parse_call(const Expression* callee);
  const Expression* parse_test(const Expression* value);
  const Expression* parse_one_filter(const Expression* value);
  void parse_arguments(Expression& call);
  void check_call(const Expression& call) const;
  void check_named_builtin(const Expression& filter) const;
  const Expression* binary(ExpressionKind kind, size_t offset, const Expression* left,
                           const Expression* right);
  const Expression* arithmetic(Arithmetic operation, size_t offset, const Expression* left,
                               const Expression* right);

  std::vector<Token> tokens_;
  std::unordered_map<std::string, NameId> name_ids_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace convoy::jinja
