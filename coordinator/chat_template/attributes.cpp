// Attributes, items and methods of values.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/text_operations.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

constexpr std::string_view kDictMethods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};
// Hugging Face's environment does not let templates change values.
constexpr std::string_view kForbidden[] = {"append",     "clear",   "extend", "insert",
                                           "pop",        "popitem", "remove", "reverse",
                                           "setdefault", "sort",    "update"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_method(const Value& value, std::string_view name) {
  if (value.text() != nullptr) return has_text_method(name);
  if (value.dict() != nullptr) return is_one_of(kDictMethods, name);
  if (value.is<const LoopState*>()) return is_one_of(kLoopMethods, name);
  const List* list = value.list();
  return list != nullptr && list->kind <= ListKind::range && is_one_of(kListMethods, name) &&
         (list->kind == ListKind::list || name != "copy");
}

bool is_forbidden(const Value& value, std::string_view name) {
  if (value.dict() != nullptr) {
    constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    return is_one_of(kOfDict, name);
  }
  const List* list = value.list();
  return list != nullptr && list->kind == ListKind::list && is_one_of(kForbidden, name) &&
         name != "popitem" && name != "setdefault" && name != "update";
}

std::string object_name(const Value& value) {
  return value.is_none() ? "None" : fmt::format("{} object", type_name(value));
}

Value missing_attribute(const Value& value, std::string_view name) {
  return undefined(fmt::format("'{}' has no attribute '{}'", object_name(value), name));
}

std::optional<Value> find_method(const Value& value, std::string_view name) {
  if (has_method(value, name))
    return Value(std::make_shared<const Method>(Method{value, std::string(name)}));
  if (is_forbidden(value, name))
    return undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
  return std::nullopt;
}

Value loop_attribute(const Value& value, const LoopState& loop, std::string_view name) {
  const size_t size = loop.items->size();
  const auto number = [](size_t count) { return Value(static_cast<Integer>(count)); };
  if (name == "index") return number(loop.index0 + 1);
  if (name == "index0") return number(loop.index0);
  if (name == "revindex") return number(size - loop.index0);
  if (name == "revindex0") return number(size - loop.index0 - 1);
  if (name == "length") return number(size);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.index0 + 1 == size);
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "previtem")
    return loop.index0 == 0 ? undefined("there is no previous item")
                            : (*loop.items)[loop.index0 - 1];
  if (name == "nextitem")
    return loop.index0 + 1 == size ? undefined("there is no next item")
                                   : (*loop.items)[loop.index0 + 1];
  if (auto method = find_method(value, name)) return *method;
  return missing_attribute(value, name);
}

Value dict_view(Budget& budget, const Dict& dict, ListKind kind) {
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    items.push_back(kind == ListKind::keys     ? key
                    : kind == ListKind::values ? value
                                               : make_list(budget, {key, value}, ListKind::tuple));
  }
  return make_list(budget, std::move(items), kind);
}

Value call_dict_method(Budget& budget, const Value& receiver, std::string_view name,
                       Arguments arguments) {
  constexpr std::array<std::string_view, 2> kNames = {"key", "default"};
  const Dict& dict = *receiver.dict();
  const BoundArguments bound(
      name, std::move(arguments),
      name == "get" ? std::span(kNames) : std::span<const std::string_view>());
  if (name == "get") {
    const Value* found = find_key(budget, dict, bound.at(0));
    if (found != nullptr) return *found;
    return bound.find(1) != nullptr ? *bound.find(1) : Value();
  }
  if (name == "copy") return receiver;
  return dict_view(budget, dict,
                   name == "keys"     ? ListKind::keys
                   : name == "values" ? ListKind::values
                                      : ListKind::items);
}

Value call_list_method(Budget& budget, const List& list, std::string_view name,
                       Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"value"};
  const bool copies = name == "copy";
  const BoundArguments bound(name, std::move(arguments),
                             copies ? std::span<const std::string_view>() : std::span(kNames));
  if (copies) return make_list(budget, list.items);
  const Value& wanted = bound.at(0);
  Integer count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (!equal(budget, list.items[i], wanted)) continue;
    if (name == "index") return Value(static_cast<Integer>(i));
    ++count;
  }
  if (name == "index") throw RenderFailure{"index: the value is not in the list"};
  return Value(count);
}

Value call_loop_method(Budget& budget, const LoopState& loop, std::string_view name,
                       Arguments arguments) {
  if (!arguments.named.empty())
    throw RenderFailure{fmt::format("loop.{} takes no named arguments", name)};
  auto& given = arguments.positional;
  if (name == "cycle") {
    if (given.empty()) throw RenderFailure{"loop.cycle needs at least one value"};
    return given[loop.index0 % given.size()];
  }
  bool changed = !loop.changed_called || loop.last_changed.size() != given.size();
  for (size_t i = 0; !changed && i < given.size(); ++i)
    changed = !equal(budget, loop.last_changed[i], given[i]);
  for (const Value& value : given) check_storable(value, "loop.changed");
  loop.changed_called = true;
  if (changed) loop.last_changed = std::move(given);
  return Value(changed);
}

// Nothing when `key` is no place in `value`.
std::optional<Value> find_item(Budget& budget, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    if (key.list() != nullptr || key.dict() != nullptr) return std::nullopt;
    const Value* found = find_key(budget, *dict, key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const auto index = as_integer(key);
  const List* list = value.list();
  const std::string* text = value.text();
  if (!index || (text == nullptr && (list == nullptr || list->kind > ListKind::range)))
    return std::nullopt;
  if (text != nullptr) budget.step_bytes(text->size());
  const auto size =
      static_cast<Integer>(text != nullptr ? count_code_points(*text) : list->items.size());
  const Integer place = *index < 0 ? *index + size : *index;
  if (place < 0 || place >= size) return std::nullopt;
  if (list != nullptr) return list->items[static_cast<size_t>(place)];
  const size_t at = offset_of(*text, static_cast<size_t>(place));
  return make_text(budget, text->substr(at, code_point_size(*text, at)));
}

}  // namespace

bool is_method(std::string_view name) {
  return has_text_method(name) || is_one_of(kDictMethods, name) || is_one_of(kListMethods, name) ||
         is_one_of(kLoopMethods, name);
}

Value get_attribute(Budget& budget, const Value& value, std::string_view name) {
  require_defined(value);
  if (const auto* loop = value.as<const LoopState*>()) return loop_attribute(value, **loop, name);
  if (const auto* space = value.as<NamespacePointer>()) {
    budget.step((*space)->attributes.size() / 8);
    for (const auto& [present, attribute] : (*space)->attributes) {
      if (present == name) return attribute;
    }
    return missing_attribute(value, name);
  }
  if (auto method = find_method(value, name)) return *method;
  if (const Dict* dict = value.dict()) {
    if (const Value* found = find_key(budget, *dict, name)) return *found;
  }
  return missing_attribute(value, name);
}

Value get_item(Budget& budget, const Value& value, const Value& key) {
  require_defined(value);
  if (auto item = find_item(budget, value, key)) return *item;
  if (const std::string* name = key.text()) {
    if (value.is<NamespacePointer>() || value.is<const LoopState*>())
      return get_attribute(budget, value, *name);
    if (auto method = find_method(value, *name)) return *method;
    return missing_attribute(value, *name);
  }
  TextBuilder shown(budget);
  append_repr(shown, budget, key);
  return undefined(fmt::format("{} has no element {}", object_name(value), shown.text()));
}

Value call_method(Budget& budget, const Value& receiver, std::string_view name,
                  Arguments arguments) {
  budget.step();
  if (const std::string* text = receiver.text())
    return call_text_method(budget, *text, name, std::move(arguments));
  if (receiver.dict() != nullptr)
    return call_dict_method(budget, receiver, name, std::move(arguments));
  if (const List* list = receiver.list())
    return call_list_method(budget, *list, name, std::move(arguments));
  return call_loop_method(budget, **receiver.as<const LoopState*>(), name, std::move(arguments));
}

}  // namespace convoy::jinja
