#include "coordinator/chat_template/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

bool equal_lists(Budget& budget, const List& left, const List& right) {
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (!equal(budget, left.items[i], right.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = find_key(budget, right, key);
    if (other == nullptr || !equal(budget, value, *other)) return false;
  }
  return true;
}

int order_lists(Budget& budget, const List& left, const List& right) {
  const size_t common = std::min(left.items.size(), right.items.size());
  for (size_t i = 0; i < common; ++i) {
    if (!equal(budget, left.items[i], right.items[i]))
      return order(budget, left.items[i], right.items[i]);
  }
  return left.items.size() < right.items.size()   ? -1
         : left.items.size() > right.items.size() ? 1
                                                  : 0;
}

template <typename T>
int order_of(const T& left, const T& right) {
  return left < right ? -1 : left > right ? 1 : left == right ? 0 : 2;
}

std::vector<Value> characters(Budget& budget, std::string_view text) {
  std::vector<Value> items;
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_size(text, at);
    items.push_back(make_text(budget, std::string(text.substr(at, size))));
    at += size;
  }
  return items;
}

struct Range {
  Integer first = 0, step = 1;
  size_t count = 0;
};

std::optional<Integer> bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  const auto number = as_integer(value);
  if (!number) throw RenderFailure{"slice indices must be integers or None"};
  return number;
}

// PySlice_AdjustIndices.
Range resolve(const SliceBounds& bounds, size_t size) {
  const auto length = static_cast<Integer>(size);
  const Integer step = bound(bounds.step).value_or(1);
  if (step == 0) throw RenderFailure{"slice step cannot be zero"};
  const auto place = [&](std::optional<Integer> given, Integer otherwise) {
    if (!given) return otherwise;
    const Integer least = step < 0 ? -1 : 0;
    const Integer most = step < 0 ? length - 1 : length;
    if (*given < -length) return least;
    if (*given > length) return most;
    return std::clamp(*given < 0 ? *given + length : *given, least, most);
  };
  const Integer start = place(bound(bounds.start), step < 0 ? length - 1 : 0);
  const Integer stop = place(bound(bounds.stop), step < 0 ? -1 : length);
  const Integer span = step < 0 ? start - stop : stop - start;
  if (span <= 0) return {start, step, 0};
  // A step beyond the length takes one item; this also keeps -step from overflowing.
  const Integer stride = step > length ? length : step < -length ? length : step < 0 ? -step : step;
  return {start, step < 0 ? -stride : stride, static_cast<size_t>((span - 1) / stride + 1)};
}

Value slice_text(Budget& budget, const std::string& text, const SliceBounds& bounds) {
  budget.step_bytes(text.size());
  const Range range = resolve(bounds, count_code_points(text));
  if (range.count == 0) return make_text(budget, "");
  if (range.step == 1) {
    const size_t start = offset_of(text, static_cast<size_t>(range.first));
    const std::string_view rest = std::string_view(text).substr(start);
    return make_text(budget, std::string(rest.substr(0, offset_of(rest, range.count))));
  }
  MemoryCharge charge(budget, text.size() * sizeof(size_t));
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += code_point_size(text, at)) offsets.push_back(at);
  TextBuilder out(budget);
  Integer index = range.first;
  for (size_t i = 0; i < range.count; ++i, index += range.step) {
    const size_t at = offsets[static_cast<size_t>(index)];
    out.append(std::string_view(text).substr(at, code_point_size(text, at)));
  }
  return make_text(std::move(out), budget);
}

}  // namespace

bool equal(Budget& budget, const Value& left, const Value& right) {
  budget.step();
  const auto a = as_integer(left);
  const auto b = as_integer(right);
  if (a && b) return *a == *b;
  const auto x = as_double(left);
  const auto y = as_double(right);
  if (x && y) return *x == *y;
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.step_bytes(std::min(left.text()->size(), right.text()->size()));
    return *left.text() == *right.text();
  }
  if (left.list() != nullptr && right.list() != nullptr)
    return left.list() == right.list() || equal_lists(budget, *left.list(), *right.list());
  if (left.dict() != nullptr && right.dict() != nullptr)
    return equal_dicts(budget, *left.dict(), *right.dict());
  if (left.state().index() != right.state().index()) return false;
  if (const auto* space = left.as<NamespacePointer>())
    return *space == *right.as<NamespacePointer>();
  if (const auto* function = left.as<Function>()) return *function == *right.as<Function>();
  return left.is_undefined() || left.is_none();
}

int order(Budget& budget, const Value& left, const Value& right) {
  budget.step();
  require_defined(left);
  require_defined(right);
  const auto a = as_integer(left);
  const auto b = as_integer(right);
  if (a && b) return order_of(*a, *b);
  const auto x = as_double(left);
  const auto y = as_double(right);
  if (x && y) return order_of(*x, *y);
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.step_bytes(std::min(left.text()->size(), right.text()->size()));
    return order_of(*left.text(), *right.text());
  }
  const List* first = left.list();
  const List* second = right.list();
  if (first != nullptr && second != nullptr && first->kind == second->kind &&
      (first->kind == ListKind::list || first->kind == ListKind::tuple))
    return order_lists(budget, *first, *second);
  throw RenderFailure{
      fmt::format("'{}' and '{}' cannot be ordered", type_name(left), type_name(right))};
}

bool compare(Budget& budget, Comparison comparison, const Value& left, const Value& right) {
  switch (comparison) {
    case Comparison::equal:
      return equal(budget, left, right);
    case Comparison::not_equal:
      return !equal(budget, left, right);
    case Comparison::in:
      return contains(budget, right, left);
    case Comparison::not_in:
      return !contains(budget, right, left);
    default:
      break;
  }
  // 2 is the order of NaN: every comparison is false.
  const int found = order(budget, left, right);
  if (comparison == Comparison::less) return found < 0;
  if (comparison == Comparison::less_equal) return found <= 0;
  if (comparison == Comparison::greater) return found == 1;
  return found == 0 || found == 1;
}

bool contains(Budget& budget, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    require_defined(item);
    const std::string* part = item.text();
    if (part == nullptr)
      throw RenderFailure{
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(item))};
    budget.step_bytes(text->size());
    return text->find(*part) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return find_key(budget, *dict, item) != nullptr;
  if (const List* list = container.list()) {
    size_t& at = list->items_read;
    size_t place = list->kind == ListKind::generator ? at : 0;
    while (place < list->items.size() && !equal(budget, list->items[place], item)) ++place;
    const bool found = place < list->items.size();
    if (list->kind == ListKind::generator) at = found ? place + 1 : place;
    return found;
  }
  if (container.is_undefined()) return false;
  throw RenderFailure{fmt::format("argument of type '{}' is not iterable", type_name(container))};
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = as_double(value)) return *number != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const List* list = value.list())
    return list->kind == ListKind::generator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  return true;
}

std::vector<Value> iterate(Budget& budget, const Value& value) {
  if (const List* list = value.list()) {
    budget.step(list->items.size());
    if (list->kind != ListKind::generator) return list->items;
    const auto unread = list->items.begin() + static_cast<ptrdiff_t>(list->items_read);
    list->items_read = list->items.size();
    return {unread, list->items.end()};
  }
  if (const std::string* text = value.text()) return characters(budget, *text);
  if (const Dict* dict = value.dict()) {
    budget.step(dict->entries.size());
    std::vector<Value> keys;
    keys.reserve(dict->entries.size());
    for (const auto& entry : dict->entries) keys.push_back(entry.first);
    return keys;
  }
  if (value.is_undefined()) return {};
  throw RenderFailure{fmt::format("'{}' object is not iterable", type_name(value))};
}

std::optional<size_t> length(Budget& budget, const Value& value) {
  if (const std::string* text = value.text()) {
    budget.step_bytes(text->size());
    return count_code_points(*text);
  }
  if (const List* list = value.list()) {
    if (list->kind == ListKind::generator) return std::nullopt;
    return list->items.size();
  }
  if (const Dict* dict = value.dict()) return dict->entries.size();
  if (const auto* loop = value.as<const LoopState*>()) return (*loop)->items->size();
  if (value.is_undefined()) return 0;
  return std::nullopt;
}

Value slice(Budget& budget, const Value& value, const SliceBounds& bounds) {
  require_defined(value);
  if (const std::string* text = value.text()) return slice_text(budget, *text, bounds);
  const List* list = value.list();
  if (list == nullptr || list->kind > ListKind::range)
    throw RenderFailure{fmt::format("'{}' object cannot be sliced", type_name(value))};
  const Range range = resolve(bounds, list->items.size());
  MemoryCharge charge(budget, range.count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(range.count);
  Integer index = range.first;
  for (size_t i = 0; i < range.count; ++i, index += range.step)
    items.push_back(list->items[static_cast<size_t>(index)]);
  return make_list(budget, std::move(items), list->kind);
}

}  // namespace convoy::jinja
