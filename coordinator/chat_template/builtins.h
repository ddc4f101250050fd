// Filters, tests, methods and functions that templates may use: those of Jinja and Python that real
// chat templates need.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/chat_template/value.h"

namespace convoy::jinja {

/// Places in the tables of filters and tests.
enum class FilterId : int {};
enum class TestId : int {};

std::optional<FilterId> find_filter(std::string_view name);
std::optional<TestId> find_test(std::string_view name);
/// A name that exists in Jinja, so that the message can say "not supported" instead of "unknown".
bool is_method(std::string_view name);
std::optional<Function> find_function(std::string_view name);

/// What stands between the parentheses of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Assigns arguments to parameters by place and name. RenderFailure "<function>: ..." for too many
/// or unknown ones. At most kMaxParameters.
class BoundArguments {
 public:
  static constexpr size_t kMaxParameters = 4;
  BoundArguments(std::string_view function, Arguments arguments,
                 std::span<const std::string_view> names);

  const Value* find(size_t index) const { return values_[index] ? &*values_[index] : nullptr; }
  /// RenderFailure when it was not given.
  const Value& at(size_t index) const;
  bool flag(size_t index, bool otherwise) const;
  Integer integer(size_t index, Integer otherwise) const;
  /// RenderFailure when it is no text.
  std::string_view text(size_t index, std::string_view otherwise) const;
  /// Absent or None: nothing.
  std::optional<std::string_view> optional_text(size_t index) const;

 private:
  std::string_view function_;
  std::span<const std::string_view> names_;
  std::optional<Value> values_[kMaxParameters];
};

// Each throws RenderFailure where Jinja raises.
Value apply_filter(Budget& budget, FilterId filter, const Value& value, Arguments arguments);
bool apply_test(Budget& budget, TestId test, const Value& value, Arguments arguments);
Value call_method(Budget& budget, const Value& receiver, std::string_view name,
                  Arguments arguments);
/// namespace, range, dict, raise_exception, strftime_now. `now` as in RenderOptions.
Value call_function(Budget& budget, Function function, Arguments arguments,
                    std::optional<std::time_t> now);

/// namespace.name = value. RenderFailure for values that must not outlive their scope.
void set_attribute(Budget& budget, Namespace& space, std::string_view name, Value value);

/// value.name and value[key]. Undefined when there is none; a method where Python has one (also
/// where the text of a key is a method's name and the key is missing).
Value get_attribute(Budget& budget, const Value& value, std::string_view name);
Value get_item(Budget& budget, const Value& value, const Value& key);

}  // namespace convoy::jinja
