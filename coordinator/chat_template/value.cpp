#include "coordinator/chat_template/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/chat_template/operators.h"

namespace convoy::jinja {

namespace {

int nesting_of(const Value& value) {
  if (const List* list = value.list()) return list->nesting;
  if (const Dict* dict = value.dict()) return dict->nesting;
  return 0;
}

void check_nesting(int nesting) {
  if (nesting > kMaxNesting)
    throw RenderFailure{fmt::format("lists and dicts nest deeper than {} levels", kMaxNesting)};
}

Value from_json_at(const boost::json::value& json, int level) {
  check_nesting(level);
  switch (json.kind()) {
    case boost::json::kind::null:
      return Value(None{});
    case boost::json::kind::bool_:
      return Value(json.get_bool());
    case boost::json::kind::int64:
      return Value(Integer{json.get_int64()});
    case boost::json::kind::uint64:
      return Value(static_cast<Integer>(json.get_uint64()));
    case boost::json::kind::double_:
      return Value(json.get_double());
    case boost::json::kind::string:
      return make_constant_text(std::string(json.get_string()));
    case boost::json::kind::array: {
      auto list = std::make_shared<List>();
      for (const auto& item : json.get_array()) {
        list->items.push_back(from_json_at(item, level + 1));
        list->nesting = std::max(list->nesting, 1 + nesting_of(list->items.back()));
      }
      return Value(ListPointer(std::move(list)));
    }
    case boost::json::kind::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& entry : json.get_object()) {
        dict->entries.emplace_back(make_constant_text(std::string(entry.key())),
                                   from_json_at(entry.value(), level + 1));
        dict->nesting = std::max(dict->nesting, 1 + nesting_of(dict->entries.back().second));
      }
      return Value(DictPointer(std::move(dict)));
    }
  }
  return Value(None{});
}

}  // namespace

Value undefined(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value make_text(Budget& budget, std::string bytes) {
  MemoryCharge charge(budget, sizeof(Text) + bytes.size());
  return Value(TextPointer(std::make_shared<Text>(Text{std::move(bytes), std::move(charge)})));
}

Value make_text(TextBuilder builder, Budget& budget) {
  // The builder's charge ends with this call, after the text's own was taken.
  return make_text(budget, std::move(builder).take_text());
}

Value make_constant_text(std::string bytes) {
  return Value(TextPointer(std::make_shared<Text>(Text{std::move(bytes), {}})));
}

void check_storable(const Value& value, std::string_view where) {
  const bool bound_to_scope = value.is<NamespacePointer>() || value.is<MethodPointer>() ||
                              value.is<MacroPointer>() || value.is<const LoopState*>();
  if (bound_to_scope) {
    throw RenderFailure{
        fmt::format("{} cannot hold a {} (not supported)", where, type_name(value))};
  }
}

Value make_list(Budget& budget, std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  list->charge = MemoryCharge(budget, sizeof(List) + items.size() * sizeof(Value));
  list->kind = kind;
  for (const Value& item : items) {
    check_storable(item, "a list");
    list->nesting = std::max(list->nesting, 1 + nesting_of(item));
  }
  check_nesting(list->nesting);
  list->items = std::move(items);
  return Value(ListPointer(std::move(list)));
}

Value make_dict(Budget& budget, std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  dict->charge = MemoryCharge(budget, sizeof(Dict) + entries.size() * 2 * sizeof(Value));
  for (std::pair<Value, Value>& entry : entries) {
    check_storable(entry.second, "a dict");
    dict->nesting = std::max(dict->nesting, 1 + nesting_of(entry.second));
    if (const Value* present = find_key(budget, *dict, entry.first)) {
      *const_cast<Value*>(present) =
          std::move(entry.second);  // NOLINT: our own dict, not shared yet
    } else {
      dict->entries.push_back(std::move(entry));
    }
  }
  check_nesting(dict->nesting);
  return Value(DictPointer(std::move(dict)));
}

Value from_json(const boost::json::value& json) {
  return from_json_at(json, 1);
}

const Value* find_key(Budget& budget, const Dict& dict, std::string_view key) {
  budget.step(1 + dict.entries.size() / 8);
  for (const auto& [present, value] : dict.entries) {
    const std::string* text = present.text();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

const Value* find_key(Budget& budget, const Dict& dict, const Value& key) {
  if (const std::string* text = key.text()) return find_key(budget, dict, std::string_view(*text));
  if (key.list() != nullptr || key.dict() != nullptr || key.is<NamespacePointer>())
    throw RenderFailure{fmt::format("unhashable type: '{}'", type_name(key))};
  for (const auto& [present, value] : dict.entries) {
    if (equal(budget, present, key)) return &value;
  }
  return nullptr;
}

std::string_view type_name(const Value& value) {
  struct Namer {
    std::string_view operator()(const Undefined&) const { return "Undefined"; }
    std::string_view operator()(const None&) const { return "NoneType"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(Integer) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(const TextPointer&) const { return "str"; }
    std::string_view operator()(const ListPointer& list) const {
      constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                             "dict_values", "dict_items", "generator"};
      return kNames[static_cast<size_t>(list->kind)];
    }
    std::string_view operator()(const DictPointer&) const { return "dict"; }
    std::string_view operator()(const NamespacePointer&) const { return "namespace"; }
    std::string_view operator()(const MethodPointer&) const { return "method"; }
    std::string_view operator()(const MacroPointer&) const { return "macro"; }
    std::string_view operator()(Function) const { return "function"; }
    std::string_view operator()(const LoopState*) const { return "loop"; }
  };
  return std::visit(Namer{}, value.state());
}

}  // namespace convoy::jinja
