#include "coordinator/chat_template/parser.h"

#include <fmt/format.h>

#include "coordinator/chat_template/expression_parser.h"

namespace convoy::jinja {

namespace {

using Words = std::initializer_list<std::string_view>;

class Parser : private ExpressionParser {
 public:
  Parser(const Source& source, Syntax& syntax)
      : ExpressionParser(source, tokenize(source), syntax) {
    for (const std::string_view name : {"loop", "caller", "varargs", "kwargs", "<captured text>"})
      intern(name);
  }

  void run() {
    syntax_.body = parse_block({});
    if (current().kind != TokenKind::end) fail_unexpected("the end of the template");
  }

 private:
  // Statements until "{% word" with one of `ends`, which stays the current token, or until the end
  // of the template.
  Block parse_block(Words ends) {
    const Nesting nesting(*this);
    Block block;
    for (;;) {
      const Token& token = current();
      switch (token.kind) {
        case TokenKind::data: {
          Statement statement;
          statement.offset = token.offset;
          statement.text = token.text;
          advance();
          block.push_back(add_statement(std::move(statement)));
          break;
        }
        case TokenKind::variable_begin: {
          advance();
          Statement statement;
          statement.kind = StatementKind::output;
          statement.offset = current().offset;
          statement.value = parse_tuple();
          expect_kind(TokenKind::variable_end);
          block.push_back(add_statement(std::move(statement)));
          break;
        }
        case TokenKind::block_begin:
          advance();
          for (const auto end : ends) {
            if (at_word(end)) return block;
          }
          block.push_back(parse_statement(ends));
          expect_kind(TokenKind::block_end);
          break;
        default:
          return block;
      }
    }
  }

  // A block that must end with one of `ends`; returns at that word.
  Block parse_body(size_t opened_at, std::string_view opener, Words ends) {
    skip_symbol(":");
    expect_kind(TokenKind::block_end);
    Block body = parse_block(ends);
    if (current().kind == TokenKind::end)
      fail(opened_at, fmt::format("\"{}\" is never closed", opener));
    return body;
  }

  const Statement* add_statement(Statement statement) {
    syntax_.statements.push_back(std::make_unique<const Statement>(std::move(statement)));
    return syntax_.statements.back().get();
  }

  const Statement* parse_statement(Words ends) {
    const Token& token = expect_kind(TokenKind::name);
    const std::string word = token.text;
    Statement statement;
    statement.offset = token.offset;
    if (word == "if") {
      parse_if(statement);
    } else if (word == "for") {
      parse_for(statement);
    } else if (word == "set") {
      parse_set(statement);
    } else if (word == "macro") {
      parse_macro(statement);
    } else if (word == "call") {
      parse_call_block(statement);
    } else if (word == "filter") {
      const LoopBarrier barrier(*this);
      statement.kind = StatementKind::filter_block;
      statement.filters = parse_filters(captured_text(statement.offset));
      statement.body = parse_body(statement.offset, word, {"endfilter"});
      advance();
    } else if (word == "with") {
      parse_with(statement);
    } else if (word == "generation") {
      const LoopBarrier barrier(*this);
      statement.kind = StatementKind::scope;
      statement.body = parse_body(statement.offset, word, {"endgeneration"});
      advance();
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) fail(statement.offset, fmt::format("\"{}\" outside of a loop", word));
      statement.kind = word == "break" ? StatementKind::break_ : StatementKind::continue_;
    } else {
      fail_statement(statement.offset, word, ends);
    }
    return add_statement(std::move(statement));
  }

  [[noreturn]] void fail_statement(size_t offset, const std::string& word, Words ends) const {
    const bool closes = word.starts_with("end") || word == "else" || word == "elif";
    if (!closes) fail(offset, fmt::format("the statement \"{}\" is not supported", word));
    std::string expected;
    for (const auto end : ends)
      expected += fmt::format("{}\"{}\"", expected.empty() ? "" : " or ", end);
    if (expected.empty()) fail(offset, fmt::format("\"{}\" closes nothing", word));
    fail(offset, fmt::format("\"{}\" does not fit: expected {}", word, expected));
  }

  const Expression* captured_text(size_t offset) {
    Expression expression;
    expression.kind = ExpressionKind::name;
    expression.offset = offset;
    expression.name = kCapturedText;
    return add(std::move(expression));
  }

  void parse_if(Statement& statement) {
    statement.kind = StatementKind::if_;
    for (;;) {
      const Expression* condition = parse_tuple(false);
      Block body = parse_body(statement.offset, "if", {"elif", "else", "endif"});
      statement.branches.push_back({condition, std::move(body)});
      if (!skip_word("elif")) break;
    }
    if (skip_word("else")) {
      statement.branches.push_back({nullptr, parse_body(statement.offset, "if", {"endif"})});
    }
    advance();
  }

  void parse_for(Statement& statement) {
    statement.kind = StatementKind::for_;
    statement.target = parse_target(false);
    expect_word("in");
    statement.value = parse_tuple(false);
    if (skip_word("if")) statement.condition = parse_expression();
    if (at_word("recursive")) fail(current().offset, "recursive loops are not supported");
    ++loops_;
    statement.body = parse_body(statement.offset, "for", {"endfor", "else"});
    --loops_;
    if (skip_word("else")) statement.otherwise = parse_body(statement.offset, "for", {"endfor"});
    advance();
  }

  void parse_set(Statement& statement) {
    statement.kind = StatementKind::set;
    statement.target = parse_target(true);
    if (skip_symbol("=")) {
      statement.value = parse_tuple();
      return;
    }
    const LoopBarrier barrier(*this);
    statement.kind = StatementKind::set_block;
    if (statement.target.is_tuple) fail_unexpected("\"=\"");
    if (skip_symbol("|")) statement.filters = parse_filters(captured_text(statement.offset));
    statement.body = parse_body(statement.offset, "set", {"endset"});
    advance();
  }

  void parse_macro_body(MacroStatement& macro, std::string_view word, std::string_view end) {
    const LoopBarrier barrier(*this);
    const size_t first = syntax_.expressions.size();
    macro.body = parse_body(macro.offset, word, {end});
    advance();
    for (size_t i = first; i < syntax_.expressions.size(); ++i) {
      const NameId name = syntax_.expressions[i]->name;
      macro.uses_caller |= name == kCaller;
      macro.uses_varargs |= name == kVarargs;
      macro.uses_kwargs |= name == kKwargs;
    }
  }

  void parse_macro(Statement& statement) {
    statement.kind = StatementKind::macro;
    statement.macro.offset = statement.offset;
    statement.macro.name = parse_new_name();
    statement.macro.parameters = parse_parameters();
    parse_macro_body(statement.macro, "macro", "endmacro");
  }

  void parse_call_block(Statement& statement) {
    statement.kind = StatementKind::call_block;
    statement.macro.offset = statement.offset;
    if (at_symbol("(")) statement.macro.parameters = parse_parameters();
    statement.value = parse_expression();
    if (statement.value->kind != ExpressionKind::call)
      fail(statement.offset, "\"call\" needs a call");
    parse_macro_body(statement.macro, "call", "endcall");
  }

  void parse_with(Statement& statement) {
    statement.kind = StatementKind::with;
    while (current().kind != TokenKind::block_end) {
      if (!statement.assignments.empty()) expect_symbol(",");
      Target target = parse_target_item(false);
      expect_symbol("=");
      statement.assignments.emplace_back(std::move(target), parse_expression());
    }
    statement.body = parse_body(statement.offset, "with", {"endwith"});
    advance();
  }

  Target parse_target(bool with_attribute) {
    Target tuple;
    tuple.offset = current().offset;
    tuple.is_tuple = true;
    bool has_comma = false;
    while (current().kind == TokenKind::name ? !at_word("in") : at_symbol("(")) {
      tuple.items.push_back(parse_target_item(with_attribute));
      if (!skip_symbol(",")) break;
      has_comma = true;
    }
    if (tuple.items.empty()) fail_unexpected("a name");
    if (has_comma) return tuple;
    Target only = std::move(tuple.items[0]);
    return only;
  }

  Target parse_target_item(bool with_attribute) {
    const Nesting nesting(*this);
    if (skip_symbol("(")) {
      Target target = parse_target(with_attribute);
      expect_symbol(")");
      return target;
    }
    Target target;
    target.offset = current().offset;
    target.name = parse_new_name();
    if (with_attribute && skip_symbol(".")) {
      target.attribute = current().text;
      expect_kind(TokenKind::name);
    }
    return target;
  }

  // A body that is rendered on its own: break and continue inside do not belong to a loop around
  // it.
  class LoopBarrier {
   public:
    explicit LoopBarrier(Parser& parser)
        : parser_(parser), loops_(std::exchange(parser.loops_, 0)) {}
    LoopBarrier(const LoopBarrier&) = delete;
    LoopBarrier& operator=(const LoopBarrier&) = delete;
    ~LoopBarrier() { parser_.loops_ = loops_; }

   private:
    Parser& parser_;
    int loops_;
  };

  int loops_ = 0;
};

}  // namespace

Syntax parse(const Source& source) {
  Syntax syntax;
  Parser(source, syntax).run();
  return syntax;
}

}  // namespace convoy::jinja
