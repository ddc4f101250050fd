// Filters on lists, dicts and whatever else can be iterated.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "coordinator/chat_template/filters.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/text_operations.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

// "function.name" or "items.0", or a number; absent: the item itself.
class AttributePath {
 public:
  explicit AttributePath(Budget& budget, const Value* attribute) : budget_(budget) {
    if (attribute == nullptr || attribute->is_none()) return;
    const std::string* text = attribute->text();
    if (text == nullptr) {
      keys_.push_back(*attribute);
      return;
    }
    for (size_t start = 0; start <= text->size();) {
      const size_t dot = std::min(text->find('.', start), text->size());
      add_key(text->substr(start, dot - start));
      start = dot + 1;
    }
  }

  Value get(const Value& item, const Value* otherwise = nullptr) const {
    Value found = item;
    for (const Value& key : keys_) {
      found = get_item(budget_, found, key);
      if (otherwise != nullptr && !otherwise->is_none() && found.is_undefined()) found = *otherwise;
    }
    return found;
  }

 private:
  void add_key(std::string part) {
    Integer number = 0;
    const bool is_number =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) {
      keys_.push_back(make_text(budget_, std::move(part)));
      return;
    }
    for (const char c : part) number = number * 10 + (c - '0');
    keys_.emplace_back(number);
  }

  Budget& budget_;
  std::vector<Value> keys_;
};

Value folded(Budget& budget, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return make_text(budget, to_lower(*value.text()));
}

Value first(const FilterCall& call) {
  const List* list = call.value.list();
  if (list != nullptr) {
    const size_t at = list->kind == ListKind::generator ? list->items_read : 0;
    if (at >= list->items.size()) return undefined("No first item, sequence was empty.");
    if (list->kind == ListKind::generator) ++list->items_read;
    return list->items[at];
  }
  if (const std::string* text = call.value.text(); text != nullptr && !text->empty())
    return make_text(call.budget, text->substr(0, code_point_size(*text, 0)));
  const auto items = iterate(call.budget, call.value);
  return items.empty() ? undefined("No first item, sequence was empty.") : items.front();
}

void expect_reversible(const Value& value) {
  const List* list = value.list();
  if (list != nullptr && list->kind == ListKind::generator)
    throw RenderFailure{"'generator' object is not reversible"};
}

Value last(const FilterCall& call) {
  expect_reversible(call.value);
  if (const List* list = call.value.list())
    return list->items.empty() ? undefined("No last item, sequence was empty.")
                               : list->items.back();
  const auto items = iterate(call.budget, call.value);
  return items.empty() ? undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(const FilterCall& call) {
  return make_list(call.budget, iterate(call.budget, call.value));
}

Value items_filter(const FilterCall& call) {
  if (call.value.is_undefined()) return make_list(call.budget, {}, ListKind::generator);
  if (call.value.dict() == nullptr) throw RenderFailure{"Can only get item pairs from a mapping."};
  const Value view = call_method(call.budget, call.value, "items", {});
  return make_list(call.budget, iterate(call.budget, view), ListKind::generator);
}

Value join(const FilterCall& call) {
  auto items = iterate(call.budget, call.value);
  const AttributePath path(call.budget, call.arguments.find(1));
  for (Value& item : items) item = path.get(item);
  const Value separator = call.arguments.find(0) != nullptr
                              ? to_str(call.budget, *call.arguments.find(0))
                              : make_text(call.budget, "");
  return join_texts(call.budget, *separator.text(), items);
}

Value reverse(const FilterCall& call) {
  if (call.value.text() != nullptr)
    return slice(call.budget, call.value, {Value(), Value(), Value(Integer{-1})});
  const List* list = call.value.list();
  const bool was_generator = list != nullptr && list->kind == ListKind::generator;
  auto items = iterate(call.budget, call.value);
  std::reverse(items.begin(), items.end());
  return make_list(call.budget, std::move(items),
                   was_generator ? ListKind::list : ListKind::generator);
}

// Sorts `items` by `keys`; stable, also in reverse.
std::vector<Value> sorted(Budget& budget, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  MemoryCharge charge(budget, items.size() * sizeof(size_t));
  std::vector<size_t> places(items.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    return reverse ? order(budget, keys[b], keys[a]) < 0 : order(budget, keys[a], keys[b]) < 0;
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const size_t place : places) result.push_back(items[place]);
  return result;
}

Value sort(const FilterCall& call) {
  const auto items = iterate(call.budget, call.value);
  const bool case_sensitive = call.arguments.flag(1, false);
  if (const Value* attribute = call.arguments.find(2);
      attribute != nullptr && attribute->text() != nullptr &&
      attribute->text()->find(',') != std::string::npos)
    throw RenderFailure{"sort by several attributes is not supported"};
  const AttributePath path(call.budget, call.arguments.find(2));
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items)
    keys.push_back(folded(call.budget, path.get(item), case_sensitive));
  return make_list(call.budget, sorted(call.budget, items, keys, call.arguments.flag(0, false)));
}

Value dictsort(const FilterCall& call) {
  require_defined(call.value);
  if (call.value.dict() == nullptr)
    throw RenderFailure{
        fmt::format("dictsort: a mapping is expected, not {}", type_name(call.value))};
  const std::string_view by = call.arguments.text(1, "key");
  if (by != "key" && by != "value")
    throw RenderFailure{"dictsort: by must be \"key\" or \"value\""};
  const auto items = iterate(call.budget, call_method(call.budget, call.value, "items", {}));
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items)
    keys.push_back(folded(call.budget, item.list()->items[by == "key" ? 0 : 1],
                          call.arguments.flag(0, false)));
  return make_list(call.budget, sorted(call.budget, items, keys, call.arguments.flag(2, false)));
}

Value unique(const FilterCall& call) {
  const auto items = iterate(call.budget, call.value);
  const AttributePath path(call.budget, call.arguments.find(1));
  std::vector<Value> seen;
  std::vector<Value> result;
  for (const Value& item : items) {
    Value key = folded(call.budget, path.get(item), call.arguments.flag(0, false));
    if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == ListKind::list))
      throw RenderFailure{fmt::format("unhashable type: '{}'", type_name(key))};
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const Value& other) { return equal(call.budget, other, key); }))
      continue;
    seen.push_back(std::move(key));
    result.push_back(item);
  }
  return make_list(call.budget, std::move(result), ListKind::generator);
}

Value extreme(const FilterCall& call, int sign) {
  const auto items = iterate(call.budget, call.value);
  if (items.empty()) return undefined("No aggregated item, sequence was empty.");
  const bool case_sensitive = call.arguments.flag(0, false);
  const AttributePath path(call.budget, call.arguments.find(1));
  size_t best = 0;
  Value best_key = folded(call.budget, path.get(items[0]), case_sensitive);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = folded(call.budget, path.get(items[i]), case_sensitive);
    const int found = order(call.budget, key, best_key);
    if (found != sign) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value least(const FilterCall& call) {
  return extreme(call, -1);
}
Value most(const FilterCall& call) {
  return extreme(call, 1);
}

Value sum(const FilterCall& call) {
  const auto items = iterate(call.budget, call.value);
  const AttributePath path(call.budget, call.arguments.find(0));
  Value total = call.arguments.find(1) != nullptr ? *call.arguments.find(1) : Value(Integer{0});
  if (total.text() != nullptr) throw RenderFailure{"sum: texts cannot be summed; use join"};
  for (const Value& item : items)
    total = calculate(call.budget, Arithmetic::add, total, path.get(item));
  return total;
}

Value batch(const FilterCall& call) {
  const auto items = iterate(call.budget, call.value);
  call.arguments.at(0);
  const Integer size = call.arguments.integer(0, 0);
  if (size < 1 || size > 1'000'000) throw RenderFailure{"batch: the size must be 1 to 1000000"};
  const Value* filler = call.arguments.find(1);
  const auto width = static_cast<size_t>(size);
  std::vector<Value> batches;
  for (size_t start = 0; start < items.size(); start += width) {
    const size_t end = std::min(start + width, items.size());
    std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(start),
                            items.begin() + static_cast<ptrdiff_t>(end));
    if (filler != nullptr && !filler->is_none()) part.resize(width, *filler);
    batches.push_back(make_list(call.budget, std::move(part)));
  }
  return make_list(call.budget, std::move(batches), ListKind::generator);
}

constexpr Filter kSequenceFilters[] = {
    {"batch", {"linecount", "fill_with"}, &batch},
    {"dictsort", {"case_sensitive", "by", "reverse"}, &dictsort},
    {"first", {}, &first},
    {"items", {}, &items_filter},
    {"join", {"d", "attribute"}, &join},
    {"last", {}, &last},
    {"list", {}, &list_filter},
    {"max", {"case_sensitive", "attribute"}, &most},
    {"min", {"case_sensitive", "attribute"}, &least},
    {"reverse", {}, &reverse},
    {"sort", {"reverse", "case_sensitive", "attribute"}, &sort},
    {"sum", {"attribute", "start"}, &sum},
    {"unique", {"case_sensitive", "attribute"}, &unique},
};

// The text argument at `place`, removed from the arguments; nothing when there is none.
std::optional<std::string> take_name(Arguments& arguments, size_t place, std::string_view filter) {
  if (arguments.positional.size() <= place) return std::nullopt;
  const std::string* name = arguments.positional[place].text();
  if (name == nullptr)
    throw RenderFailure{fmt::format("{}: the name of a filter or test must be a text", filter)};
  std::string result = *name;
  arguments.positional.erase(arguments.positional.begin() + static_cast<ptrdiff_t>(place));
  return result;
}

Value map(Budget& budget, const Value& value, Arguments arguments) {
  std::vector<Value> result;
  if (!truth(value)) return make_list(budget, {}, ListKind::generator);
  auto items = iterate(budget, value);
  if (arguments.positional.empty()) {
    constexpr std::string_view kNames[] = {"attribute", "default"};
    const BoundArguments bound("map", std::move(arguments), kNames);
    const AttributePath path(budget, &bound.at(0));
    for (const Value& item : items) result.push_back(path.get(item, bound.find(1)));
  } else {
    const auto name = take_name(arguments, 0, "map");
    const auto filter = find_filter(*name);
    if (!filter) throw RenderFailure{fmt::format("the filter \"{}\" is not supported", *name)};
    for (const Value& item : items)
      result.push_back(apply_filter(budget, *filter, item, arguments));
  }
  return make_list(budget, std::move(result), ListKind::generator);
}

struct Selection {
  std::string_view filter;
  bool by_attribute;
  bool wanted;
};

Value choose(Budget& budget, const Value& value, Arguments arguments, const Selection& selection) {
  if (!truth(value)) return make_list(budget, {}, ListKind::generator);
  Value attribute;
  if (selection.by_attribute) {
    if (arguments.positional.empty()) throw RenderFailure{"Missing parameter for attribute name"};
    attribute = arguments.positional[0];
    arguments.positional.erase(arguments.positional.begin());
  }
  const AttributePath path(budget, &attribute);
  const auto name = take_name(arguments, 0, selection.filter);
  const auto test = name ? find_test(*name) : std::nullopt;
  if (name && !test) throw RenderFailure{fmt::format("the test \"{}\" is not supported", *name)};
  std::vector<Value> result;
  for (const Value& item : iterate(budget, value)) {
    const Value tested = path.get(item);
    const bool holds = test ? apply_test(budget, *test, tested, arguments) : truth(tested);
    if (holds == selection.wanted) result.push_back(item);
  }
  return make_list(budget, std::move(result), ListKind::generator);
}

Value select(Budget& budget, const Value& value, Arguments arguments) {
  return choose(budget, value, std::move(arguments), {"select", false, true});
}
Value reject(Budget& budget, const Value& value, Arguments arguments) {
  return choose(budget, value, std::move(arguments), {"reject", false, false});
}
Value selectattr(Budget& budget, const Value& value, Arguments arguments) {
  return choose(budget, value, std::move(arguments), {"selectattr", true, true});
}
Value rejectattr(Budget& budget, const Value& value, Arguments arguments) {
  return choose(budget, value, std::move(arguments), {"rejectattr", true, false});
}

constexpr ForwardingFilter kForwardingFilters[] = {
    {"map", &map},
    {"select", &select},
    {"reject", &reject},
    {"selectattr", &selectattr},
    {"rejectattr", &rejectattr},
};

}  // namespace

std::span<const Filter> sequence_filters() {
  return kSequenceFilters;
}
std::span<const ForwardingFilter> forwarding_filters() {
  return kForwardingFilters;
}

}  // namespace convoy::jinja
