// Python's operators, truth and printing on template values. Each throws RenderFailure where Python
// or Jinja raises.
#pragma once

#include <string_view>
#include <vector>

#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

enum class Arithmetic { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

Value calculate(Budget& budget, Arithmetic operation, const Value& left, const Value& right);
Value negate(const Value& value);
Value plus(const Value& value);

bool equal(Budget& budget, const Value& left, const Value& right);
/// Negative, zero or positive; for numbers, texts, lists and tuples. NaN compares as greater.
int order(Budget& budget, const Value& left, const Value& right);
bool compare(Budget& budget, Comparison comparison, const Value& left, const Value& right);
bool contains(Budget& budget, const Value& container, const Value& item);

bool truth(const Value& value);

/// Items of whatever can be iterated: characters of texts, keys of dicts. A generator is used up.
std::vector<Value> iterate(Budget& budget, const Value& value);

/// len(). Nothing for values without a length.
std::optional<size_t> length(Budget& budget, const Value& value);

/// Absent parts are None.
struct SliceBounds {
  Value start, stop, step;
};
Value slice(Budget& budget, const Value& value, const SliceBounds& bounds);

/// An integer or boolean as a number; nothing for anything else.
std::optional<Integer> as_integer(const Value& value);
/// A number as a double; nothing for anything else.
std::optional<double> as_double(const Value& value);

/// Uses of an undefined value fail with its own message.
[[noreturn]] void fail_undefined(const Undefined& value);
inline void require_defined(const Value& value) {
  if (const auto* missing = value.as<Undefined>()) fail_undefined(*missing);
}

}  // namespace convoy::jinja
