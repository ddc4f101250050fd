// The part of ExpressionParser that reads what follows a value: subscripts, calls, filters and
// tests.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/chat_template/expression_parser.h"

namespace convoy::jinja {

const Expression* ExpressionParser::parse_subscript(const Expression* value) {
  Expression expression;
  const Token& opening = advance();
  expression.offset = opening.offset;
  if (opening.text == ".") {
    const Token& token = current();
    if (token.kind == TokenKind::name) {
      expression.kind = ExpressionKind::attribute;
      expression.text = token.text;
      expression.offset = token.offset;
      expression.children = {value};
    } else if (token.kind == TokenKind::integer) {
      Expression index;
      index.offset = token.offset;
      index.constant = Value(token.integer);
      expression.kind = ExpressionKind::item;
      expression.children = {value, add(std::move(index))};
    } else {
      fail_unexpected("a name or a number");
    }
    advance();
    return add(std::move(expression));
  }
  if (at_symbol("]")) fail_unexpected("an expression");
  const Expression* first = at_symbol(":") ? nullptr : parse_expression();
  if (at_symbol(",")) fail(current().offset, "several subscripts are not supported");
  if (skip_symbol(":")) {
    expression.kind = ExpressionKind::slice;
    const auto part = [&]() {
      return at_symbol(":") || at_symbol("]") ? nullptr : parse_expression();
    };
    const Expression* stop = part();
    const Expression* step = skip_symbol(":") ? part() : nullptr;
    expression.children = {value, first, stop, step};
  } else {
    expression.kind = ExpressionKind::item;
    expression.children = {value, first};
  }
  expect_symbol("]");
  return add(std::move(expression));
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_symbol("(");
  bool first = true;
  while (!at_symbol(")")) {
    if (!first) expect_symbol(",");
    first = false;
    if (at_symbol(")")) break;
    if (at_symbol("*") || at_symbol("**"))
      fail(current().offset,
           fmt::format("\"{}\" in front of an argument is not supported", current().text));
    if (current().kind == TokenKind::name && is_symbol(ahead(), "=")) {
      const Token& name = advance();
      const auto same = [&](const Keyword& keyword) { return keyword.name == name.text; };
      if (std::any_of(call.keywords.begin(), call.keywords.end(), same))
        fail(name.offset, fmt::format("the argument \"{}\" is given twice", name.text));
      advance();
      const std::string text = name.text;
      call.keywords.push_back({text, parse_expression()});
    } else {
      if (!call.keywords.empty())
        fail(current().offset, "an argument without a name follows one with a name");
      call.children.push_back(parse_expression());
    }
  }
  expect_symbol(")");
}

const Expression* ExpressionParser::parse_call(const Expression* callee) {
  Expression call;
  call.kind = ExpressionKind::call;
  call.offset = callee->kind == ExpressionKind::attribute || callee->kind == ExpressionKind::name
                    ? callee->offset
                    : current().offset;
  call.children = {callee};
  parse_arguments(call);
  check_call(call);
  return add(std::move(call));
}

// Nothing that a template can be given is callable except methods that is_method knows, so another
// one is refused when the template is read and not in the middle of a conversation.
void ExpressionParser::check_call(const Expression& call) const {
  const Expression& callee = *call.children[0];
  if (callee.kind == ExpressionKind::attribute && !is_method(callee.text))
    fail(callee.offset, fmt::format("the method \"{}\" is not supported", callee.text));
  if (callee.kind == ExpressionKind::name) {
    for (const std::string_view name : {"lipsum", "cycler", "joiner", "super", "self"}) {
      if (callee.text == name)
        fail(callee.offset, fmt::format("the function \"{}\" is not supported", name));
    }
  }
}

const Expression* ExpressionParser::parse_one_filter(const Expression* value) {
  const Token& token = expect_kind(TokenKind::name);
  const auto filter = find_filter(token.text);
  if (!filter) fail(token.offset, fmt::format("the filter \"{}\" is not supported", token.text));
  if (at_symbol(".")) fail(token.offset, "filters with a dot in their name are not supported");
  Expression expression;
  expression.kind = ExpressionKind::filter;
  expression.offset = token.offset;
  expression.text = token.text;
  expression.filter = *filter;
  expression.children = {value};
  if (at_symbol("(")) parse_arguments(expression);
  check_named_builtin(expression);
  return add(std::move(expression));
}

// map("upper"), select("odd"), selectattr("role", "equalto", ...): the name is nearly always a
// literal.
void ExpressionParser::check_named_builtin(const Expression& filter) const {
  const bool maps = filter.text == "map";
  const bool selects = filter.text == "select" || filter.text == "reject";
  const bool selects_attribute = filter.text == "selectattr" || filter.text == "rejectattr";
  const size_t place = selects_attribute ? 2 : 1;
  if ((!maps && !selects && !selects_attribute) || filter.children.size() <= place) return;
  const Expression& argument = *filter.children[place];
  const std::string* name =
      argument.kind == ExpressionKind::constant ? argument.constant.text() : nullptr;
  if (name == nullptr) return;
  if (maps && !find_filter(*name))
    fail(argument.offset, fmt::format("the filter \"{}\" is not supported", *name));
  if (!maps && !find_test(*name))
    fail(argument.offset, fmt::format("the test \"{}\" is not supported", *name));
}

const Expression* ExpressionParser::parse_filters(const Expression* value) {
  value = parse_one_filter(value);
  while (skip_symbol("|")) value = parse_one_filter(value);
  return value;
}

const Expression* ExpressionParser::parse_test(const Expression* value) {
  advance();
  const bool negated = skip_word("not");
  const size_t negated_offset = current().offset;
  const Token& token = expect_kind(TokenKind::name);
  const auto test = find_test(token.text);
  if (!test) fail(token.offset, fmt::format("the test \"{}\" is not supported", token.text));
  Expression expression;
  expression.kind = ExpressionKind::test;
  expression.offset = token.offset;
  expression.text = token.text;
  expression.test = *test;
  expression.children = {value};
  const TokenKind next = current().kind;
  const bool is_value = next == TokenKind::name || next == TokenKind::text ||
                        next == TokenKind::integer || next == TokenKind::real || at_symbol("[") ||
                        at_symbol("{");
  if (at_symbol("(")) {
    parse_arguments(expression);
  } else if (is_value && !at_word("else") && !at_word("or") && !at_word("and")) {
    if (at_word("is")) fail(current().offset, "tests cannot be chained with \"is\"");
    expression.children.push_back(parse_postfix(parse_primary()));
  }
  const Expression* result = add(std::move(expression));
  if (!negated) return result;
  Expression inverse;
  inverse.kind = ExpressionKind::not_;
  inverse.offset = negated_offset;
  inverse.children = {result};
  return add(std::move(inverse));
}

std::vector<Parameter> ExpressionParser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_symbol("(");
  while (!at_symbol(")")) {
    if (!parameters.empty()) expect_symbol(",");
    const size_t offset = current().offset;
    const NameId name = parse_new_name();
    if (std::any_of(parameters.begin(), parameters.end(),
                    [&](const Parameter& p) { return p.name == name; }))
      fail(offset, "the parameter is named twice");
    const Expression* otherwise = skip_symbol("=") ? parse_expression() : nullptr;
    if (otherwise == nullptr && !parameters.empty() && parameters.back().otherwise != nullptr)
      fail(offset, "a parameter without a default follows one with a default");
    parameters.push_back({name, otherwise});
  }
  expect_symbol(")");
  return parameters;
}

}  // namespace convoy::jinja
