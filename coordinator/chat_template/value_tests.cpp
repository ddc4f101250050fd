// What may follow "is".
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/text_operations.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

struct Test {
  std::string_view name;
  bool takes_value;
  bool (*holds)(Budget& budget, const Value& value, const Value& other);
};

template <Comparison comparison>
bool compares(Budget& budget, const Value& value, const Value& other) {
  return compare(budget, comparison, value, other);
}

bool has_remainder(Budget& budget, const Value& value, Integer divisor, Integer remainder) {
  return equal(budget, calculate(budget, Arithmetic::modulo, value, Value(divisor)),
               Value(remainder));
}

bool is_boolean(Budget&, const Value& value, const Value&) {
  return value.is<bool>();
}
bool is_callable(Budget&, const Value& value, const Value&) {
  return value.is_undefined() || value.is<MacroPointer>() || value.is<MethodPointer>() ||
         value.is<Function>() || value.is<const LoopState*>();
}
bool is_defined(Budget&, const Value& value, const Value&) {
  return !value.is_undefined();
}
bool is_divisible(Budget& budget, const Value& value, const Value& other) {
  return equal(budget, calculate(budget, Arithmetic::modulo, value, other), Value(Integer{0}));
}
bool is_even(Budget& budget, const Value& value, const Value&) {
  return has_remainder(budget, value, 2, 0);
}
bool is_false(Budget&, const Value& value, const Value&) {
  return value.is<bool>() && !*value.as<bool>();
}
bool is_float(Budget&, const Value& value, const Value&) {
  return value.is<double>();
}
bool is_integer(Budget&, const Value& value, const Value&) {
  return value.is<Integer>();
}
bool is_iterable(Budget&, const Value& value, const Value&) {
  return value.is_undefined() || value.text() != nullptr || value.list() != nullptr ||
         value.dict() != nullptr || value.is<const LoopState*>();
}
bool is_lower(Budget& budget, const Value& value, const Value&) {
  return *call_method(budget, to_str(budget, value), "islower", {}).as<bool>();
}
bool is_mapping(Budget&, const Value& value, const Value&) {
  return value.dict() != nullptr;
}
bool is_none(Budget&, const Value& value, const Value&) {
  return value.is_none();
}
bool is_number(Budget&, const Value& value, const Value&) {
  return as_double(value).has_value();
}
bool is_odd(Budget& budget, const Value& value, const Value&) {
  return has_remainder(budget, value, 2, 1);
}
bool is_same(Budget& budget, const Value& value, const Value& other) {
  if (value.state().index() != other.state().index()) return false;
  if (value.list() != nullptr) return value.list() == other.list();
  if (value.dict() != nullptr) return value.dict() == other.dict();
  return equal(budget, value, other);
}
bool is_sequence(Budget&, const Value& value, const Value&) {
  const List* list = value.list();
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (list != nullptr && list->kind <= ListKind::range);
}
bool is_text(Budget&, const Value& value, const Value&) {
  return value.text() != nullptr;
}
bool is_true(Budget&, const Value& value, const Value&) {
  return value.is<bool>() && *value.as<bool>();
}
bool is_undefined(Budget&, const Value& value, const Value&) {
  return value.is_undefined();
}
bool is_upper(Budget& budget, const Value& value, const Value&) {
  return *call_method(budget, to_str(budget, value), "isupper", {}).as<bool>();
}

constexpr Test kTests[] = {
    {"boolean", false, &is_boolean},
    {"callable", false, &is_callable},
    {"defined", false, &is_defined},
    {"divisibleby", true, &is_divisible},
    {"even", false, &is_even},
    {"false", false, &is_false},
    {"float", false, &is_float},
    {"integer", false, &is_integer},
    {"iterable", false, &is_iterable},
    {"lower", false, &is_lower},
    {"mapping", false, &is_mapping},
    {"none", false, &is_none},
    {"number", false, &is_number},
    {"odd", false, &is_odd},
    {"sameas", true, &is_same},
    {"sequence", false, &is_sequence},
    {"string", false, &is_text},
    {"true", false, &is_true},
    {"undefined", false, &is_undefined},
    {"upper", false, &is_upper},
    {"==", true, &compares<Comparison::equal>},
    {"eq", true, &compares<Comparison::equal>},
    {"equalto", true, &compares<Comparison::equal>},
    {"!=", true, &compares<Comparison::not_equal>},
    {"ne", true, &compares<Comparison::not_equal>},
    {">", true, &compares<Comparison::greater>},
    {"gt", true, &compares<Comparison::greater>},
    {"greaterthan", true, &compares<Comparison::greater>},
    {">=", true, &compares<Comparison::greater_equal>},
    {"ge", true, &compares<Comparison::greater_equal>},
    {"<", true, &compares<Comparison::less>},
    {"lt", true, &compares<Comparison::less>},
    {"lessthan", true, &compares<Comparison::less>},
    {"<=", true, &compares<Comparison::less_equal>},
    {"le", true, &compares<Comparison::less_equal>},
    {"in", true, &compares<Comparison::in>},
};

}  // namespace

std::optional<TestId> find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const Test& test) { return test.name == name; });
  if (found == std::end(kTests)) return std::nullopt;
  return TestId{static_cast<int>(found - std::begin(kTests))};
}

bool apply_test(Budget& budget, TestId id, const Value& value, Arguments arguments) {
  budget.step();
  const Test& test = kTests[static_cast<size_t>(id)];
  constexpr std::string_view kNames[] = {"other"};
  const BoundArguments bound(
      test.name, std::move(arguments),
      test.takes_value ? std::span(kNames) : std::span<const std::string_view>());
  return test.holds(budget, value, test.takes_value ? bound.at(0) : Value());
}

}  // namespace convoy::jinja
