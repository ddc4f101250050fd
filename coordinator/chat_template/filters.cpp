#include "coordinator/chat_template/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/text_operations.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

// str(value) of a filter that works on texts.
Value soft(const FilterCall& call) {
  return to_str(call.budget, call.value);
}

Value trim(const FilterCall& call) {
  const Value text = soft(call);
  call.budget.step_bytes(text.text()->size());
  return make_text(call.budget,
                   std::string(strip(*text.text(), call.arguments.optional_text(0), {})));
}

Value upper(const FilterCall& call) {
  return make_text(call.budget, to_upper(*soft(call).text()));
}
Value lower(const FilterCall& call) {
  return make_text(call.budget, to_lower(*soft(call).text()));
}
Value capitalize_filter(const FilterCall& call) {
  return capitalize(call.budget, *soft(call).text());
}
Value as_string(const FilterCall& call) {
  return soft(call);
}

// Words begin after white space and after - ( { [ <.
Value title(const FilterCall& call) {
  const Value value = soft(call);
  const std::string_view text = *value.text();
  const auto separates = [&](size_t at) {
    return is_space(code_point(text, at)) ||
           std::string_view("-({[<").find(text[at]) != std::string_view::npos;
  };
  TextBuilder out(call.budget);
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_size(text, at);
    out.append(to_upper(text.substr(at, size)));
    size_t end = at + size;
    if (!separates(at)) {
      while (end < text.size() && !separates(end)) end += code_point_size(text, end);
      out.append(to_lower(text.substr(at + size, end - at - size)));
    }
    at = end;
  }
  return make_text(std::move(out), call.budget);
}

Value length_filter(const FilterCall& call) {
  const auto size = length(call.budget, call.value);
  if (!size)
    throw RenderFailure{fmt::format("object of type '{}' has no len()", type_name(call.value))};
  return Value(static_cast<Integer>(*size));
}

Value default_filter(const FilterCall& call) {
  const bool replaces =
      call.value.is_undefined() || (call.arguments.flag(1, false) && !truth(call.value));
  if (!replaces) return call.value;
  return call.arguments.find(0) != nullptr ? *call.arguments.find(0) : make_text(call.budget, "");
}

Value replace_filter(const FilterCall& call) {
  const Value text = soft(call);
  const Value old = to_str(call.budget, call.arguments.at(0));
  const Value with = to_str(call.budget, call.arguments.at(1));
  const Value* count = call.arguments.find(2);
  const bool all = count == nullptr || count->is_none();
  return replace_text(call.budget, *text.text(), *old.text(), *with.text(),
                      all ? std::nullopt : std::optional(call.arguments.integer(2, -1)));
}

std::string indent_unit(const BoundArguments& arguments, size_t index, Integer otherwise) {
  const Value* given = arguments.find(index);
  if (given != nullptr && given->text() != nullptr) return *given->text();
  const Integer width = arguments.integer(index, otherwise);
  if (width > 1000) throw RenderFailure{"an indent of more than 1000 spaces is not allowed"};
  return std::string(width > 0 ? static_cast<size_t>(width) : 0, ' ');
}

Value indent(const FilterCall& call) {
  require_defined(call.value);
  if (call.value.text() == nullptr)
    throw RenderFailure{fmt::format("indent: a text is expected, not {}", type_name(call.value))};
  const std::string unit = indent_unit(call.arguments, 0, 4);
  const bool indents_first = call.arguments.flag(1, false);
  const bool indents_blank = call.arguments.flag(2, false);
  const std::string text = *call.value.text() + "\n";
  call.budget.step_bytes(text.size());
  TextBuilder out(call.budget);
  bool first = true;
  for (const auto line : split_lines(text)) {
    if (!first) out.append('\n');
    if (first ? indents_first : indents_blank || !line.empty()) out.append(unit);
    out.append(line);
    first = false;
  }
  return make_text(std::move(out), call.budget);
}

Value tojson(const FilterCall& call) {
  JsonStyle style;
  style.ensure_ascii = call.arguments.flag(0, false);
  if (const Value* given = call.arguments.find(1); given != nullptr && !given->is_none()) {
    style.indent = indent_unit(call.arguments, 1, 0);
    style.item_separator = ",";
  }
  if (const Value* given = call.arguments.find(2); given != nullptr && !given->is_none()) {
    const List* pair = given->list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr)
      throw RenderFailure{"tojson: separators must be two texts"};
    style.item_separator = *pair->items[0].text();
    style.key_separator = *pair->items[1].text();
  }
  style.sort_keys = call.arguments.flag(3, false);
  return to_json(call.budget, call.value, style);
}

// int(text, base) of Python; nothing where it raises.
std::optional<Integer> parse_integer(std::string_view text, Integer base) {
  text = strip(text, std::nullopt, {});
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto has_prefix = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] == letter || text[1] == letter - 32);
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) ||
      (base == 2 && has_prefix('b')))
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  Integer value = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value))
      throw RenderFailure{"an integer does not fit 128 bits"};
    after_digit = true;
  }
  if (!after_digit) return std::nullopt;
  return negative ? -value : value;
}

// float(text) of Python; nothing where it raises.
std::optional<double> parse_real(std::string_view given) {
  std::string text(strip(given, std::nullopt, {}));
  for (size_t at = text.find('_'); at != std::string::npos; at = text.find('_', at)) {
    const auto digit = [&](size_t i) {
      return i < text.size() && text[i] >= '0' && text[i] <= '9';
    };
    if (at == 0 || !digit(at - 1) || !digit(at + 1)) return std::nullopt;
    text.erase(at, 1);
  }
  std::string_view rest = text;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty() || rest.find_first_of("()pPxX+") == 0 ||
      rest.find('(') != std::string_view::npos)
    return std::nullopt;
  if (text.starts_with('+') && rest.starts_with('-')) return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (read.ptr != rest.data() + rest.size()) return std::nullopt;
  // Out of range: from_chars leaves the value alone, strtod gives infinity or zero as Python does.
  if (read.ec == std::errc::result_out_of_range)
    return std::strtod(std::string(rest).c_str(), nullptr);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<Integer> truncate(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 0x1p126) throw RenderFailure{"an integer does not fit 128 bits"};
  return static_cast<Integer>(value);
}

Value int_filter(const FilterCall& call) {
  require_defined(call.value);
  const Integer base = call.arguments.integer(1, 10);
  if (base < 2 || base > 36) throw RenderFailure{"int: the base must be 2 to 36"};
  std::optional<Integer> result = as_integer(call.value);
  if (const double* number = call.value.as<double>()) result = truncate(*number);
  if (const std::string* text = call.value.text()) {
    call.budget.step_bytes(text->size());
    result = parse_integer(*text, base);
    if (!result) {
      if (const auto number = parse_real(*text)) result = truncate(*number);
    }
  }
  if (result) return Value(*result);
  return call.arguments.find(0) != nullptr ? *call.arguments.find(0) : Value(Integer{0});
}

Value float_filter(const FilterCall& call) {
  require_defined(call.value);
  std::optional<double> result = as_double(call.value);
  if (const std::string* text = call.value.text()) result = parse_real(*text);
  if (result) return Value(*result);
  return call.arguments.find(0) != nullptr ? *call.arguments.find(0) : Value(0.0);
}

Value absolute(const FilterCall& call) {
  require_defined(call.value);
  if (const auto number = as_integer(call.value))
    return *number < 0 ? negate(call.value) : Value(*number);
  if (const double* number = call.value.as<double>()) return Value(std::abs(*number));
  throw RenderFailure{fmt::format("bad operand type for abs(): '{}'", type_name(call.value))};
}

Value round_filter(const FilterCall& call) {
  require_defined(call.value);
  const Integer precision = call.arguments.integer(0, 0);
  const std::string_view method = call.arguments.text(1, "common");
  if (precision < 0 || precision > 300)
    throw RenderFailure{"round: the precision must be 0 to 300"};
  const auto number = as_double(call.value);
  if (!number)
    throw RenderFailure{fmt::format("round: a number is expected, not {}", type_name(call.value))};
  if (method == "common") {
    if (const auto integer = as_integer(call.value)) return Value(*integer);
    if (!std::isfinite(*number)) return call.value;
    // Rounds the exact binary value, half to even, as Python does.
    return Value(
        std::strtod(fmt::format("{:.{}f}", *number, static_cast<int>(precision)).c_str(), nullptr));
  }
  if (method != "ceil" && method != "floor")
    throw RenderFailure{"round: the method must be common, ceil or floor"};
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const auto integral =
      truncate(method == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale));
  if (!integral) throw RenderFailure{"round: the number is not finite"};
  return Value(static_cast<double>(*integral) / scale);
}

constexpr Filter kFilters[] = {
    {"abs", {}, &absolute},
    {"capitalize", {}, &capitalize_filter},
    {"count", {}, &length_filter},
    {"d", {"default_value", "boolean"}, &default_filter},
    {"default", {"default_value", "boolean"}, &default_filter},
    {"float", {"default"}, &float_filter},
    {"indent", {"width", "first", "blank"}, &indent},
    {"int", {"default", "base"}, &int_filter},
    {"length", {}, &length_filter},
    {"lower", {}, &lower},
    {"replace", {"old", "new", "count"}, &replace_filter},
    {"round", {"precision", "method"}, &round_filter},
    {"safe", {}, &as_string},
    {"string", {}, &as_string},
    {"title", {}, &title},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, &tojson},
    {"trim", {"chars"}, &trim},
    {"upper", {}, &upper},
};

template <typename Entry>
std::optional<int> place_of(std::span<const Entry> entries, std::string_view name, size_t base) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  if (found == entries.end()) return std::nullopt;
  return static_cast<int>(base + static_cast<size_t>(found - entries.begin()));
}

Value apply(Budget& budget, const Filter& filter, const Value& value, Arguments arguments) {
  const auto* end = std::find(std::begin(filter.parameters), std::end(filter.parameters), "");
  const BoundArguments bound(filter.name, std::move(arguments),
                             {std::begin(filter.parameters), end});
  return filter.apply({budget, value, bound});
}

}  // namespace

// Ids count through the three tables.
std::optional<FilterId> find_filter(std::string_view name) {
  auto place = place_of(std::span<const Filter>(kFilters), name, 0);
  if (!place) place = place_of(sequence_filters(), name, std::size(kFilters));
  if (!place)
    place = place_of(forwarding_filters(), name, std::size(kFilters) + sequence_filters().size());
  return place ? std::optional(FilterId{*place}) : std::nullopt;
}

Value apply_filter(Budget& budget, FilterId filter, const Value& value, Arguments arguments) {
  const DepthGuard guard(budget);
  budget.step();
  auto place = static_cast<size_t>(filter);
  if (place < std::size(kFilters))
    return apply(budget, kFilters[place], value, std::move(arguments));
  place -= std::size(kFilters);
  const auto sequence = sequence_filters();
  if (place < sequence.size()) return apply(budget, sequence[place], value, std::move(arguments));
  return forwarding_filters()[place - sequence.size()].apply(budget, value, std::move(arguments));
}

}  // namespace convoy::jinja
