// The functions that every template sees.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>

#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"

namespace convoy::jinja {

namespace {

constexpr Integer kMaxRange = 100'000;  // as Jinja's sandbox

Value make_range(Budget& budget, Arguments arguments) {
  constexpr std::array<std::string_view, 3> kNames = {"start", "stop", "step"};
  const BoundArguments bound("range", std::move(arguments), kNames);
  bound.at(0);
  const bool one = bound.find(1) == nullptr;
  const Integer start = one ? 0 : bound.integer(0, 0);
  const Integer stop = bound.integer(one ? 0 : 1, 0);
  const Integer step = bound.integer(2, 1);
  if (step == 0) throw RenderFailure{"range: the step must not be zero"};
  constexpr Integer kFar = Integer{1} << 100;  // keeps the arithmetic below from overflowing
  if (start > kFar || start < -kFar || stop > kFar || stop < -kFar || step > kFar || step < -kFar)
    throw RenderFailure{"range: a number is too large"};
  const Integer span = step > 0 ? stop - start : start - stop;
  const Integer stride = step > 0 ? step : -step;
  const Integer count = span <= 0 ? 0 : (span - 1) / stride + 1;
  if (count > kMaxRange)
    throw RenderFailure{
        fmt::format("a range has more than {} items", static_cast<int64_t>(kMaxRange))};
  MemoryCharge charge(budget, static_cast<size_t>(count) * sizeof(Value));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Integer i = 0; i < count; ++i) items.emplace_back(start + i * step);
  return make_list(budget, std::move(items), ListKind::range);
}

// dict(mapping, name=value) and namespace(mapping, name=value).
std::vector<std::pair<Value, Value>> entries_of(Budget& budget, std::string_view function,
                                                Arguments arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1)
    throw RenderFailure{fmt::format("{}: at most one mapping is allowed", function)};
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    require_defined(given);
    if (given.dict() == nullptr)
      throw RenderFailure{
          fmt::format("{}: a mapping is expected, not {}", function, type_name(given))};
    entries = given.dict()->entries;
    budget.step(entries.size());
  }
  for (auto& [name, value] : arguments.named)
    entries.emplace_back(make_text(budget, std::move(name)), std::move(value));
  return entries;
}

Value make_namespace(Budget& budget, Arguments arguments) {
  const auto entries = entries_of(budget, "namespace", std::move(arguments));
  auto space = std::make_shared<Namespace>();
  space->charge = MemoryCharge(budget, sizeof(Namespace));
  for (const auto& [key, value] : entries) {
    if (key.text() == nullptr) throw RenderFailure{"namespace: attribute names must be texts"};
    set_attribute(budget, *space, *key.text(), value);
  }
  return Value(NamespacePointer(std::move(space)));
}

Value format_time(Budget& budget, Arguments arguments, std::optional<std::time_t> now) {
  constexpr std::array<std::string_view, 1> kNames = {"format"};
  const BoundArguments bound("strftime_now", std::move(arguments), kNames);
  bound.at(0);
  // The mark in front tells an empty result from one that does not fit.
  const std::string format = "x" + std::string(bound.text(0, {}));
  const std::time_t time =
      now ? *now : std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  if (localtime_r(&time, &parts) == nullptr)
    throw RenderFailure{"strftime_now: the time is out of range"};
  char buffer[1024];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  if (size == 0)
    throw RenderFailure{
        fmt::format("strftime_now: the result is longer than {} bytes", sizeof buffer - 2)};
  return make_text(budget, std::string(buffer + 1, size - 1));
}

}  // namespace

void set_attribute(Budget& budget, Namespace& space, std::string_view name, Value value) {
  if (name.starts_with('_'))
    throw RenderFailure{fmt::format("a namespace attribute must not begin with _: {}", name)};
  check_storable(value, "a namespace");
  budget.step(1 + space.attributes.size() / 8);
  for (auto& [present, attribute] : space.attributes) {
    if (present != name) continue;
    attribute = std::move(value);
    return;
  }
  space.charge.add(sizeof(Value) + sizeof(std::string) + name.size());
  space.attributes.emplace_back(name, std::move(value));
}

std::optional<Function> find_function(std::string_view name) {
  if (name == "range") return Function::range;
  if (name == "namespace") return Function::namespace_;
  if (name == "dict") return Function::dict;
  if (name == "raise_exception") return Function::raise_exception;
  if (name == "strftime_now") return Function::strftime_now;
  return std::nullopt;
}

Value call_function(Budget& budget, Function function, Arguments arguments,
                    std::optional<std::time_t> now) {
  budget.step();
  switch (function) {
    case Function::range:
      return make_range(budget, std::move(arguments));
    case Function::namespace_:
      return make_namespace(budget, std::move(arguments));
    case Function::dict:
      return make_dict(budget, entries_of(budget, "dict", std::move(arguments)));
    case Function::raise_exception: {
      constexpr std::array<std::string_view, 1> kNames = {"message"};
      const BoundArguments bound("raise_exception", std::move(arguments), kNames);
      TextBuilder message(budget);
      append_str(message, budget, bound.at(0));
      throw RenderFailure{message.text()};
    }
    case Function::strftime_now:
      return format_time(budget, std::move(arguments), now);
  }
  return Value();
}

}  // namespace convoy::jinja
