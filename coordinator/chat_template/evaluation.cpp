// The part of Renderer that evaluates expressions and calls macros.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/renderer.h"

namespace convoy::jinja {

Value Renderer::evaluate(const Expression& expression) {
  const DepthGuard guard(budget_);
  budget_.step();
  switch (expression.kind) {
    case ExpressionKind::constant:
      return expression.constant;
    case ExpressionKind::name:
      return evaluate_name(expression);
    case ExpressionKind::attribute:
      return evaluate_attribute(expression);
    case ExpressionKind::item:
      return evaluate_item(expression);
    case ExpressionKind::slice:
      return evaluate_slice(expression);
    case ExpressionKind::call:
      return evaluate_call(expression);
    case ExpressionKind::filter:
      return evaluate_filter(expression);
    case ExpressionKind::test:
      return evaluate_test(expression);
    case ExpressionKind::list:
    case ExpressionKind::tuple:
      return evaluate_sequence(expression);
    case ExpressionKind::dict:
      return evaluate_dict(expression);
    case ExpressionKind::arithmetic:
    case ExpressionKind::negate:
    case ExpressionKind::plus:
      return evaluate_arithmetic(expression);
    case ExpressionKind::comparison:
      return evaluate_comparison(expression);
    case ExpressionKind::concatenate:
      return evaluate_concatenation(expression);
    case ExpressionKind::not_:
    case ExpressionKind::and_:
    case ExpressionKind::or_:
    case ExpressionKind::condition:
      return evaluate_choice(expression);
  }
  return Value();
}

Value Renderer::evaluate_name(const Expression& expression) {
  if (const Value* found = scope_->find(budget_, expression.name)) return *found;
  const std::string& name = syntax_.names[static_cast<size_t>(expression.name)];
  if (const auto function = find_function(name)) return Value(*function);
  return undefined(fmt::format("'{}' is undefined", name));
}

Value Renderer::evaluate_attribute(const Expression& expression) {
  const Value value = evaluate(*expression.children[0]);
  offset_ = expression.offset;
  return get_attribute(budget_, value, expression.text);
}

Value Renderer::evaluate_item(const Expression& expression) {
  const Value value = evaluate(*expression.children[0]);
  const Value key = evaluate(*expression.children[1]);
  offset_ = expression.offset;
  return get_item(budget_, value, key);
}

Value Renderer::evaluate_slice(const Expression& expression) {
  const auto part = [&](size_t i) {
    const Expression* child = expression.children[i];
    return child != nullptr ? evaluate(*child) : Value();
  };
  const Value value = part(0);
  const SliceBounds bounds{part(1), part(2), part(3)};
  offset_ = expression.offset;
  return slice(budget_, value, bounds);
}

Arguments Renderer::evaluate_arguments(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.children.size(); ++i)
    arguments.positional.push_back(evaluate(*expression.children[i]));
  for (const Keyword& keyword : expression.keywords)
    arguments.named.emplace_back(keyword.name, evaluate(*keyword.value));
  return arguments;
}

Value Renderer::evaluate_call(const Expression& expression) {
  const Value callee = evaluate(*expression.children[0]);
  Arguments arguments = evaluate_arguments(expression);
  offset_ = expression.offset;
  return call(callee, std::move(arguments));
}

Value Renderer::evaluate_filter(const Expression& expression) {
  const Value value = evaluate(*expression.children[0]);
  Arguments arguments = evaluate_arguments(expression);
  offset_ = expression.offset;
  return apply_filter(budget_, expression.filter, value, std::move(arguments));
}

Value Renderer::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.children[0]);
  Arguments arguments = evaluate_arguments(expression);
  offset_ = expression.offset;
  return Value(apply_test(budget_, expression.test, value, std::move(arguments)));
}

Value Renderer::evaluate_sequence(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.children.size());
  for (const Expression* child : expression.children) items.push_back(evaluate(*child));
  offset_ = expression.offset;
  return make_list(budget_, std::move(items),
                   expression.kind == ExpressionKind::list ? ListKind::list : ListKind::tuple);
}

Value Renderer::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expression.children.size(); i += 2) {
    Value key = evaluate(*expression.children[i]);
    entries.emplace_back(std::move(key), evaluate(*expression.children[i + 1]));
  }
  offset_ = expression.offset;
  return make_dict(budget_, std::move(entries));
}

Value Renderer::evaluate_arithmetic(const Expression& expression) {
  const Value left = evaluate(*expression.children[0]);
  if (expression.kind != ExpressionKind::arithmetic) {
    offset_ = expression.offset;
    return expression.kind == ExpressionKind::negate ? negate(left) : plus(left);
  }
  const Value right = evaluate(*expression.children[1]);
  offset_ = expression.offset;
  return calculate(budget_, expression.arithmetic, left, right);
}

Value Renderer::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1]);
    offset_ = expression.offset;
    if (!compare(budget_, expression.comparisons[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Renderer::evaluate_concatenation(const Expression& expression) {
  std::vector<Value> parts;
  parts.reserve(expression.children.size());
  for (const Expression* child : expression.children) parts.push_back(evaluate(*child));
  offset_ = expression.offset;
  TextBuilder out(budget_);
  for (const Value& part : parts) append_str(out, budget_, part);
  return make_text(std::move(out), budget_);
}

Value Renderer::evaluate_choice(const Expression& expression) {
  Value first = evaluate(*expression.children[0]);
  const bool holds = truth(first);
  switch (expression.kind) {
    case ExpressionKind::not_:
      return Value(!holds);
    case ExpressionKind::and_:
      return holds ? evaluate(*expression.children[1]) : first;
    case ExpressionKind::or_:
      return holds ? first : evaluate(*expression.children[1]);
    default:
      break;
  }
  if (holds) return evaluate(*expression.children[1]);
  if (expression.children[2] != nullptr) return evaluate(*expression.children[2]);
  return undefined("the condition of the inline if is false and it has no else");
}

Value Renderer::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  if (const auto* method = callee.as<MethodPointer>())
    return call_method(budget_, (*method)->receiver, (*method)->name, std::move(arguments));
  if (const auto* function = callee.as<Function>())
    return call_function(budget_, *function, std::move(arguments), options_.now);
  if (const auto* macro = callee.as<MacroPointer>())
    return call_macro(**macro, std::move(arguments));
  throw RenderFailure{fmt::format("'{}' object is not callable", type_name(callee))};
}

void Renderer::bind_parameters(const MacroStatement& macro, Arguments& arguments, Scope& scope) {
  auto& named = arguments.named;
  const auto take_named = [&](NameId name) -> std::optional<Value> {
    const std::string& text = syntax_.names[static_cast<size_t>(name)];
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto& entry) { return entry.first == text; });
    if (found == named.end()) return std::nullopt;
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  bool has_caller = false;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    has_caller |= parameter.name == kCaller;
    if (i < arguments.positional.size()) {
      scope.set(parameter.name, arguments.positional[i]);
    } else if (auto value = take_named(parameter.name)) {
      scope.set(parameter.name, std::move(*value));
    } else if (parameter.otherwise != nullptr) {
      scope.set(parameter.name, evaluate(*parameter.otherwise));
    } else {
      scope.set(parameter.name,
                undefined(fmt::format("parameter '{}' was not provided",
                                      syntax_.names[static_cast<size_t>(parameter.name)])));
    }
  }
  if (macro.uses_caller && !has_caller) {
    auto caller = take_named(kCaller);
    scope.set(kCaller, caller ? std::move(*caller) : undefined("No caller defined"));
  }
}

Value Renderer::call_macro(const Macro& macro, Arguments arguments) {
  const DepthGuard guard(budget_);
  const MacroStatement& statement = *macro.statement;
  const std::string name =
      statement.name < 0 ? "caller" : syntax_.names[static_cast<size_t>(statement.name)];
  Scope scope(macro.scope);
  const Inside inside(*this, scope);
  bind_parameters(statement, arguments, scope);
  if (statement.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, value] : arguments.named)
      entries.emplace_back(make_text(budget_, key), std::move(value));
    scope.set(kKwargs, make_dict(budget_, std::move(entries)));
  } else if (!arguments.named.empty()) {
    throw RenderFailure{
        fmt::format("macro '{}' takes no keyword argument '{}'", name, arguments.named[0].first)};
  }
  auto& positional = arguments.positional;
  const size_t count = statement.parameters.size();
  if (statement.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < positional.size(); ++i) rest.push_back(std::move(positional[i]));
    scope.set(kVarargs, make_list(budget_, std::move(rest), ListKind::tuple));
  } else if (positional.size() > count) {
    throw RenderFailure{fmt::format("macro '{}' takes not more than {} argument(s)", name, count)};
  }
  return capture(statement.body, nullptr);
}

}  // namespace convoy::jinja
