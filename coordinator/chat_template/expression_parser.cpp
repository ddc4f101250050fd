#include "coordinator/chat_template/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace convoy::jinja {

namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "text";
    case TokenKind::variable_begin:
      return "\"{{\"";
    case TokenKind::variable_end:
      return "\"}}\"";
    case TokenKind::block_begin:
      return "\"{%\"";
    case TokenKind::block_end:
      return "\"%}\"";
    case TokenKind::name:
    case TokenKind::symbol:
      return "\"" + token.text + "\"";
    case TokenKind::text:
      return "a text";
    case TokenKind::integer:
    case TokenKind::real:
      return "a number";
    case TokenKind::end:
      return "the end of the template";
  }
  return "";
}

}  // namespace

ExpressionParser::ExpressionParser(const Source& source, std::vector<Token> tokens, Syntax& syntax)
    : source_(source), syntax_(syntax), tokens_(std::move(tokens)) {}

bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!at_symbol(symbol)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_word(std::string_view word) {
  if (!at_word(word)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) fail_unexpected(fmt::format("\"{}\"", symbol));
}

void ExpressionParser::expect_word(std::string_view word) {
  if (!skip_word(word)) fail_unexpected(fmt::format("\"{}\"", word));
}

const Token& ExpressionParser::expect_kind(TokenKind kind) {
  if (current().kind != kind) {
    Token wanted;
    wanted.kind = kind;
    fail_unexpected(kind == TokenKind::name ? "a name" : describe(wanted));
  }
  return advance();
}

void ExpressionParser::fail_unexpected(std::string_view expected) const {
  fail(current().offset, fmt::format("expected {}, found {}", expected, describe(current())));
}

void ExpressionParser::fail_nesting() const {
  fail(current().offset, fmt::format("nested deeper than {} levels", kMaxParseDepth));
}

NameId ExpressionParser::intern(std::string_view name) {
  const auto found = name_ids_.find(std::string(name));
  if (found != name_ids_.end()) return found->second;
  const auto id = static_cast<NameId>(syntax_.names.size());
  syntax_.names.emplace_back(name);
  name_ids_.emplace(name, id);
  return id;
}

NameId ExpressionParser::parse_new_name() {
  const Token& token = expect_kind(TokenKind::name);
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (token.text == constant)
      fail(token.offset, fmt::format("\"{}\" cannot be assigned to", constant));
  }
  return intern(token.text);
}

const Expression* ExpressionParser::add(Expression expression) {
  const auto deepen = [&](const Expression* child) {
    if (child != nullptr) expression.depth = std::max(expression.depth, child->depth + 1);
  };
  for (const Expression* child : expression.children) deepen(child);
  for (const Keyword& keyword : expression.keywords) deepen(keyword.value);
  if (expression.depth > kMaxParseDepth)
    fail(expression.offset, fmt::format("the expression is deeper than {} levels", kMaxParseDepth));
  syntax_.expressions.push_back(std::make_unique<const Expression>(std::move(expression)));
  return syntax_.expressions.back().get();
}

const Expression* ExpressionParser::binary(ExpressionKind kind, size_t offset,
                                           const Expression* left, const Expression* right) {
  Expression expression;
  expression.kind = kind;
  expression.offset = offset;
  expression.children = {left, right};
  return add(std::move(expression));
}

const Expression* ExpressionParser::arithmetic(Arithmetic operation, size_t offset,
                                               const Expression* left, const Expression* right) {
  Expression expression;
  expression.kind = ExpressionKind::arithmetic;
  expression.offset = offset;
  expression.arithmetic = operation;
  expression.children = {left, right};
  return add(std::move(expression));
}

const Expression* ExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  const Expression* value = parse_or();
  while (with_condition && at_word("if")) {
    Expression condition;
    condition.kind = ExpressionKind::condition;
    condition.offset = advance().offset;
    const Expression* test = parse_or();
    condition.children = {test, value, skip_word("else") ? parse_expression() : nullptr};
    value = add(std::move(condition));
  }
  return value;
}

const Expression* ExpressionParser::parse_tuple(bool with_condition, bool parenthesized) {
  const size_t offset = current().offset;
  Expression tuple;
  tuple.kind = ExpressionKind::tuple;
  tuple.offset = offset;
  bool has_comma = false;
  for (;;) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::variable_end || kind == TokenKind::block_end || at_symbol(")")) break;
    tuple.children.push_back(parse_expression(with_condition));
    if (!skip_symbol(",")) break;
    has_comma = true;
  }
  if (!has_comma && tuple.children.size() == 1) return tuple.children[0];
  if (tuple.children.empty() && !parenthesized) fail_unexpected("an expression");
  return add(std::move(tuple));
}

const Expression* ExpressionParser::parse_or() {
  const Expression* left = parse_and();
  while (at_word("or")) {
    const size_t offset = advance().offset;
    left = binary(ExpressionKind::or_, offset, left, parse_and());
  }
  return left;
}

const Expression* ExpressionParser::parse_and() {
  const Expression* left = parse_not();
  while (at_word("and")) {
    const size_t offset = advance().offset;
    left = binary(ExpressionKind::and_, offset, left, parse_not());
  }
  return left;
}

const Expression* ExpressionParser::parse_not() {
  if (!at_word("not")) return parse_comparison();
  const Nesting nesting(*this);
  Expression expression;
  expression.kind = ExpressionKind::not_;
  expression.offset = advance().offset;
  expression.children = {parse_not()};
  return add(std::move(expression));
}

const Expression* ExpressionParser::parse_comparison() {
  constexpr std::string_view kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
  constexpr Comparison kComparisons[] = {Comparison::equal,   Comparison::not_equal,
                                         Comparison::less,    Comparison::less_equal,
                                         Comparison::greater, Comparison::greater_equal};
  Expression expression;
  expression.kind = ExpressionKind::comparison;
  expression.offset = current().offset;
  expression.children = {parse_sum()};
  for (;;) {
    const auto* found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [&](auto s) { return at_symbol(s); });
    const bool negated = at_word("not") && is_word(ahead(), "in");
    if (found == std::end(kSymbols) && !negated && !at_word("in")) break;
    if (expression.comparisons.empty()) expression.offset = current().offset;
    if (found != std::end(kSymbols)) {
      expression.comparisons.push_back(kComparisons[found - std::begin(kSymbols)]);
    } else {
      expression.comparisons.push_back(negated ? Comparison::not_in : Comparison::in);
    }
    advance();
    if (negated) advance();
    expression.children.push_back(parse_sum());
  }
  return expression.comparisons.empty() ? expression.children[0] : add(std::move(expression));
}

const Expression* ExpressionParser::parse_sum() {
  const Expression* left = parse_concatenation();
  while (at_symbol("+") || at_symbol("-")) {
    const Token& token = advance();
    const auto operation = token.text == "+" ? Arithmetic::add : Arithmetic::subtract;
    const size_t offset = token.offset;
    left = arithmetic(operation, offset, left, parse_concatenation());
  }
  return left;
}

const Expression* ExpressionParser::parse_concatenation() {
  Expression expression;
  expression.kind = ExpressionKind::concatenate;
  expression.offset = current().offset;
  expression.children = {parse_product()};
  while (skip_symbol("~")) expression.children.push_back(parse_product());
  return expression.children.size() == 1 ? expression.children[0] : add(std::move(expression));
}

const Expression* ExpressionParser::parse_product() {
  constexpr std::string_view kSymbols[] = {"*", "/", "//", "%"};
  constexpr Arithmetic kOperations[] = {Arithmetic::multiply, Arithmetic::divide,
                                        Arithmetic::floor_divide, Arithmetic::modulo};
  const Expression* left = parse_power();
  for (;;) {
    const auto* found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [&](auto s) { return at_symbol(s); });
    if (found == std::end(kSymbols)) return left;
    const size_t offset = advance().offset;
    left = arithmetic(kOperations[found - std::begin(kSymbols)], offset, left, parse_power());
  }
}

const Expression* ExpressionParser::parse_power() {
  const Expression* left = parse_unary();
  while (at_symbol("**")) {
    const size_t offset = advance().offset;
    left = arithmetic(Arithmetic::power, offset, left, parse_unary());
  }
  return left;
}

const Expression* ExpressionParser::parse_unary(bool with_filter) {
  const Expression* value = nullptr;
  if (at_symbol("-") || at_symbol("+")) {
    const Nesting nesting(*this);
    Expression expression;
    expression.kind = at_symbol("-") ? ExpressionKind::negate : ExpressionKind::plus;
    expression.offset = advance().offset;
    expression.children = {parse_unary(false)};
    value = add(std::move(expression));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(value);
  return with_filter ? parse_filters_and_tests(value) : value;
}

const Expression* ExpressionParser::parse_name() {
  const Token& token = advance();
  Expression expression;
  expression.offset = token.offset;
  if (token.text == "true" || token.text == "True" || token.text == "false" ||
      token.text == "False") {
    expression.constant = Value(token.text == "true" || token.text == "True");
  } else if (token.text == "none" || token.text == "None") {
    expression.constant = Value(None{});
  } else {
    expression.kind = ExpressionKind::name;
    expression.name = intern(token.text);
    expression.text = token.text;
  }
  return add(std::move(expression));
}

const Expression* ExpressionParser::parse_primary() {
  const Token& token = current();
  Expression expression;
  expression.offset = token.offset;
  switch (token.kind) {
    case TokenKind::name:
      return parse_name();
    case TokenKind::text: {
      std::string text;
      while (current().kind == TokenKind::text) text += advance().text;
      expression.constant = make_constant_text(std::move(text));
      return add(std::move(expression));
    }
    case TokenKind::integer:
      expression.constant = Value(advance().integer);
      return add(std::move(expression));
    case TokenKind::real:
      expression.constant = Value(advance().real);
      return add(std::move(expression));
    default:
      break;
  }
  if (at_symbol("[")) return parse_list();
  if (at_symbol("{")) return parse_dict();
  if (!skip_symbol("(")) fail_unexpected("an expression");
  const Expression* value = parse_tuple(true, true);
  expect_symbol(")");
  return value;
}

const Expression* ExpressionParser::parse_list() {
  Expression list;
  list.kind = ExpressionKind::list;
  list.offset = advance().offset;
  while (!at_symbol("]")) {
    if (!list.children.empty()) expect_symbol(",");
    if (at_symbol("]")) break;
    list.children.push_back(parse_expression());
  }
  expect_symbol("]");
  return add(std::move(list));
}

const Expression* ExpressionParser::parse_dict() {
  Expression dict;
  dict.kind = ExpressionKind::dict;
  dict.offset = advance().offset;
  while (!at_symbol("}")) {
    if (!dict.children.empty()) expect_symbol(",");
    if (at_symbol("}")) break;
    dict.children.push_back(parse_expression());
    expect_symbol(":");
    dict.children.push_back(parse_expression());
  }
  expect_symbol("}");
  return add(std::move(dict));
}

const Expression* ExpressionParser::parse_postfix(const Expression* value) {
  for (;;) {
    if (at_symbol(".") || at_symbol("[")) {
      value = parse_subscript(value);
    } else if (at_symbol("(")) {
      value = parse_call(value);
    } else {
      return value;
    }
  }
}

const Expression* ExpressionParser::parse_filters_and_tests(const Expression* value) {
  for (;;) {
    if (skip_symbol("|")) {
      value = parse_one_filter(value);
    } else if (at_word("is")) {
      value = parse_test(value);
    } else if (at_symbol("(")) {
      value = parse_call(value);
    } else {
      return value;
    }
  }
}

}  // namespace convoy::jinja
