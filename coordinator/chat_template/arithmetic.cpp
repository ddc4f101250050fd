#include <fmt/format.h>

#include <cmath>

#include "coordinator/chat_template/operators.h"

namespace convoy::jinja {

namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_types(Arithmetic operation, const Value& left, const Value& right) {
  throw RenderFailure{fmt::format("unsupported operand types for {}: '{}' and '{}'",
                                  kSymbols[static_cast<size_t>(operation)], type_name(left),
                                  type_name(right))};
}

[[noreturn]] void fail_overflow() {
  throw RenderFailure{"an integer does not fit 128 bits"};
}

[[noreturn]] void fail_zero() {
  throw RenderFailure{"division by zero"};
}

Integer integer_power(Integer base, Integer exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  Integer result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
  }
  return result;
}

Value real_power(double left, double right) {
  if (left == 0 && right < 0) throw RenderFailure{"0.0 cannot be raised to a negative power"};
  if (left < 0 && std::isfinite(left) && std::isfinite(right) && right != std::floor(right))
    throw RenderFailure{"a negative number to a fractional power is not supported"};
  const double result = std::pow(left, right);
  if (std::isinf(result) && std::isfinite(left) && std::isfinite(right))
    throw RenderFailure{"the result of ** is too large"};
  return Value(result);
}

Value calculate_integers(Arithmetic operation, Integer a, Integer b) {
  Integer result = 0;
  switch (operation) {
    case Arithmetic::add:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Arithmetic::subtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Arithmetic::multiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value(result);
    case Arithmetic::divide:
      if (b == 0) fail_zero();
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Arithmetic::floor_divide:
    case Arithmetic::modulo: {
      if (b == 0) fail_zero();
      if (b == -1) {  // the quotient of the least integer would overflow
        if (operation == Arithmetic::modulo) return Value(Integer{0});
        if (__builtin_sub_overflow(Integer{0}, a, &result)) fail_overflow();
        return Value(result);
      }
      const bool below = a % b != 0 && (a < 0) != (b < 0);  // C++ rounds towards zero, Python down
      return Value(operation == Arithmetic::modulo ? a % b + (below ? b : 0)
                                                   : a / b - (below ? 1 : 0));
    }
    case Arithmetic::power:
      if (b < 0) return real_power(static_cast<double>(a), static_cast<double>(b));
      return Value(integer_power(a, b));
  }
  return Value();
}

double real_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double real_floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value calculate_reals(Arithmetic operation, double a, double b) {
  const bool divides = operation == Arithmetic::divide || operation == Arithmetic::floor_divide ||
                       operation == Arithmetic::modulo;
  if (divides && b == 0) fail_zero();
  switch (operation) {
    case Arithmetic::add:
      return Value(a + b);
    case Arithmetic::subtract:
      return Value(a - b);
    case Arithmetic::multiply:
      return Value(a * b);
    case Arithmetic::divide:
      return Value(a / b);
    case Arithmetic::floor_divide:
      return Value(real_floor_divide(a, b));
    case Arithmetic::modulo:
      return Value(real_modulo(a, b));
    case Arithmetic::power:
      return real_power(a, b);
  }
  return Value();
}

size_t repeat_count(Budget& budget, size_t size, Integer count) {
  if (count <= 0 || size == 0) return 0;
  // Checked before the product, which might wrap around.
  if (count > static_cast<Integer>(budget.limits().max_live_bytes)) budget.take(SIZE_MAX);
  return static_cast<size_t>(count);
}

Value repeat(Budget& budget, const Value& value, Integer count) {
  if (const std::string* text = value.text()) {
    const size_t times = repeat_count(budget, text->size(), count);
    TextBuilder out(budget);
    if (text->size() == 1) out.append(times, text->front());
    for (size_t i = 0; text->size() != 1 && i < times; ++i) out.append(*text);
    return make_text(std::move(out), budget);
  }
  const List* list = value.list();
  const size_t times = repeat_count(budget, list->items.size(), count);
  MemoryCharge charge(budget, 0);
  std::vector<Value> items;
  for (size_t i = 0; i < times; ++i) {
    charge.add(list->items.size() * sizeof(Value));
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return make_list(budget, std::move(items), list->kind);
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.text() != nullptr ||
         (list != nullptr && (list->kind == ListKind::list || list->kind == ListKind::tuple));
}

Value add_sequences(Budget& budget, const Value& left, const Value& right) {
  const std::string* a = left.text();
  const std::string* b = right.text();
  if (a != nullptr && b != nullptr) {
    TextBuilder out(budget);
    out.append(*a);
    out.append(*b);
    return make_text(std::move(out), budget);
  }
  const List* first = left.list();
  const List* second = right.list();
  if (first == nullptr || second == nullptr || first->kind != second->kind || !is_sequence(left))
    fail_types(Arithmetic::add, left, right);
  MemoryCharge charge(budget, (first->items.size() + second->items.size()) * sizeof(Value));
  std::vector<Value> items = first->items;
  items.insert(items.end(), second->items.begin(), second->items.end());
  return make_list(budget, std::move(items), first->kind);
}

}  // namespace

void fail_undefined(const Undefined& value) {
  throw RenderFailure{*value.why};
}

std::optional<Integer> as_integer(const Value& value) {
  if (const bool* flag = value.as<bool>()) return Integer{*flag ? 1 : 0};
  if (const Integer* number = value.as<Integer>()) return *number;
  return std::nullopt;
}

std::optional<double> as_double(const Value& value) {
  if (const double* number = value.as<double>()) return *number;
  if (const auto number = as_integer(value)) return static_cast<double>(*number);
  return std::nullopt;
}

Value calculate(Budget& budget, Arithmetic operation, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  const auto a = as_integer(left);
  const auto b = as_integer(right);
  if (a && b) return calculate_integers(operation, *a, *b);
  const auto x = as_double(left);
  const auto y = as_double(right);
  if (x && y) return calculate_reals(operation, *x, *y);
  if (operation == Arithmetic::add) return add_sequences(budget, left, right);
  if (operation == Arithmetic::multiply && is_sequence(left) && b) return repeat(budget, left, *b);
  if (operation == Arithmetic::multiply && is_sequence(right) && a)
    return repeat(budget, right, *a);
  if (operation == Arithmetic::modulo && left.text() != nullptr)
    throw RenderFailure{"text formatting with % is not supported"};
  fail_types(operation, left, right);
}

Value negate(const Value& value) {
  require_defined(value);
  if (const auto number = as_integer(value))
    return calculate_integers(Arithmetic::subtract, 0, *number);
  if (const double* number = value.as<double>()) return Value(-*number);
  throw RenderFailure{fmt::format("bad operand type for unary -: '{}'", type_name(value))};
}

Value plus(const Value& value) {
  require_defined(value);
  if (const auto number = as_integer(value)) return Value(*number);
  if (value.is<double>()) return value;
  throw RenderFailure{fmt::format("bad operand type for unary +: '{}'", type_name(value))};
}

}  // namespace convoy::jinja
