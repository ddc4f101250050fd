#include "coordinator/chat_template/text_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/printing.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

using Names = std::array<std::string_view, 2>;

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Value make_view_list(Budget& budget, const std::vector<std::string_view>& parts,
                     ListKind kind = ListKind::list) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const auto part : parts) items.push_back(make_text(budget, std::string(part)));
  return make_list(budget, std::move(items), kind);
}

std::vector<std::string_view> split_spaces(std::string_view text, size_t most) {
  std::vector<std::string_view> parts;
  text = strip(text, std::nullopt, {.left = true, .right = false});
  while (!text.empty()) {
    if (parts.size() == most) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(code_point(text, end))) end += code_point_size(text, end);
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), std::nullopt, {.left = true, .right = false});
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       size_t most) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  while (parts.size() < most) {
    const size_t found = text.find(separator, start);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(start, found - start));
    start = found + separator.size();
  }
  parts.push_back(text.substr(start));
  return parts;
}

std::vector<std::string_view> split_at_from_right(std::string_view text, std::string_view separator,
                                                  size_t most) {
  std::vector<std::string_view> parts;
  while (parts.size() < most) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Budget& budget, std::string_view text, bool from_right, Arguments arguments) {
  constexpr Names kNames = {"sep", "maxsplit"};
  const BoundArguments bound(from_right ? "rsplit" : "split", std::move(arguments), kNames);
  const auto separator = bound.optional_text(0);
  const Integer most = bound.integer(1, -1);
  const size_t limit = most < 0 || most > static_cast<Integer>(text.size())
                           ? text.size() + 1
                           : static_cast<size_t>(most);
  if (separator && separator->empty()) throw RenderFailure{"split: the separator is empty"};
  if (!separator) {
    if (from_right && most >= 0)
      throw RenderFailure{"rsplit at white space with a limit is not supported"};
    return make_view_list(budget, split_spaces(text, limit));
  }
  return make_view_list(budget, from_right ? split_at_from_right(text, *separator, limit)
                                           : split_at(text, *separator, limit));
}

Value strip_method(Budget& budget, std::string_view text, StripSides sides, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"chars"};
  const BoundArguments bound("strip", std::move(arguments), kNames);
  return make_text(budget, std::string(strip(text, bound.optional_text(0), sides)));
}

// The argument is a text or a tuple of texts.
bool matches_end(std::string_view text, std::string_view method, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"prefix"};
  const bool starts = method == "startswith";
  const BoundArguments bound(method, std::move(arguments), kNames);
  const auto matches = [&](std::string_view part) {
    return starts ? text.starts_with(part) : text.ends_with(part);
  };
  const List* list = bound.at(0).list();
  if (list == nullptr || list->kind != ListKind::tuple) return matches(bound.text(0, {}));
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) {
    if (item.text() == nullptr)
      throw RenderFailure{fmt::format("{}: the tuple must hold texts only", method)};
    return matches(*item.text());
  });
}

Value find_part(std::string_view text, std::string_view method, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"sub"};
  const BoundArguments bound(method, std::move(arguments), kNames);
  bound.at(0);
  const std::string_view part = bound.text(0, {});
  const size_t found = method == "rfind" ? text.rfind(part) : text.find(part);
  if (found != std::string_view::npos)
    return Value(static_cast<Integer>(count_code_points(text.substr(0, found))));
  if (method == "index") throw RenderFailure{"substring not found"};
  return Value(Integer{-1});
}

Value count_parts(std::string_view text, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"sub"};
  const BoundArguments bound("count", std::move(arguments), kNames);
  bound.at(0);
  const std::string_view part = bound.text(0, {});
  if (part.empty()) return Value(static_cast<Integer>(count_code_points(text) + 1));
  Integer count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return Value(count);
}

Value partition(Budget& budget, std::string_view text, bool from_right, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"sep"};
  const BoundArguments bound("partition", std::move(arguments), kNames);
  bound.at(0);
  const std::string_view separator = bound.text(0, {});
  if (separator.empty()) throw RenderFailure{"partition: the separator is empty"};
  const size_t found = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<std::string_view> parts;
  if (found == std::string_view::npos) {
    parts = from_right ? std::vector<std::string_view>{"", "", text}
                       : std::vector<std::string_view>{text, "", ""};
  } else {
    parts = {text.substr(0, found), separator, text.substr(found + separator.size())};
  }
  return make_view_list(budget, parts, ListKind::tuple);
}

Value title(Budget& budget, std::string_view text) {
  TextBuilder out(budget);
  bool inside_word = false;
  for (size_t at = 0; at < text.size();) {
    const auto character = text.substr(at, code_point_size(text, at));
    out.append(inside_word ? to_lower(character) : to_title(character));
    inside_word = is_cased(code_point(text, at));
    at += character.size();
  }
  return make_text(std::move(out), budget);
}

// isdigit, isalpha, isalnum, isspace: every character, and at least one.
bool all_characters(std::string_view text, bool (*holds)(char32_t)) {
  for (size_t at = 0; at < text.size(); at += code_point_size(text, at)) {
    if (!holds(code_point(text, at))) return false;
  }
  return !text.empty();
}

bool all_cased(std::string_view text, bool (*wrong)(char32_t)) {
  bool any = false;
  for (size_t at = 0; at < text.size(); at += code_point_size(text, at)) {
    const char32_t c = code_point(text, at);
    if (wrong(c)) return false;
    any |= is_cased(c);
  }
  return any;
}

void expect_no_arguments(std::string_view method, Arguments arguments) {
  const BoundArguments bound(method, std::move(arguments), {});
}

std::optional<bool> test_characters(std::string_view text, std::string_view name) {
  if (name == "isdigit") return all_characters(text, &is_digit);
  if (name == "isalpha") return all_characters(text, &is_alphabetic);
  if (name == "isspace") return all_characters(text, &is_space);
  if (name == "isalnum")
    return all_characters(text, [](char32_t c) { return is_alphabetic(c) || is_digit(c); });
  if (name == "isupper") return all_cased(text, &is_lower_case);
  if (name == "islower") return all_cased(text, &is_upper_case);
  return std::nullopt;
}

Value remove_end(Budget& budget, std::string_view text, std::string_view method,
                 Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"affix"};
  const BoundArguments bound(method, std::move(arguments), kNames);
  bound.at(0);
  const std::string_view part = bound.text(0, {});
  if (method == "removeprefix") {
    if (text.starts_with(part)) text.remove_prefix(part.size());
  } else if (text.ends_with(part)) {
    text.remove_suffix(part.size());
  }
  return make_text(budget, std::string(text));
}

Value join_method(Budget& budget, std::string_view separator, Arguments arguments) {
  constexpr std::array<std::string_view, 1> kNames = {"iterable"};
  const BoundArguments bound("join", std::move(arguments), kNames);
  const auto items = iterate(budget, bound.at(0));
  for (const Value& item : items) {
    if (item.text() == nullptr)
      throw RenderFailure{fmt::format("join: a text is expected, not {}", type_name(item))};
  }
  return join_texts(budget, separator, items);
}

Value replace_method(Budget& budget, std::string_view text, Arguments arguments) {
  constexpr std::array<std::string_view, 3> kNames = {"old", "new", "count"};
  const BoundArguments bound("replace", std::move(arguments), kNames);
  bound.at(0);
  bound.at(1);
  return replace_text(budget, text, bound.text(0, {}), bound.text(1, {}), bound.integer(2, -1));
}

constexpr std::string_view kTextMethods[] = {
    "capitalize", "count",        "endswith",     "find",       "index", "isalnum",    "isalpha",
    "isdigit",    "islower",      "isspace",      "isupper",    "join",  "lower",      "lstrip",
    "partition",  "removeprefix", "removesuffix", "replace",    "rfind", "rpartition", "rsplit",
    "rstrip",     "split",        "splitlines",   "startswith", "strip", "title",      "upper"};

}  // namespace

bool has_text_method(std::string_view name) {
  return std::find(std::begin(kTextMethods), std::end(kTextMethods), name) !=
         std::end(kTextMethods);
}

Value replace_text(Budget& budget, std::string_view text, std::string_view old,
                   std::string_view with, std::optional<Integer> count) {
  Integer left = count && *count >= 0 ? *count : static_cast<Integer>(text.size()) + 1;
  TextBuilder out(budget);
  budget.step_bytes(text.size());
  size_t start = 0;
  while (left-- > 0) {
    if (old.empty()) {
      // In front of every character and at the end.
      out.append(with);
      if (start == text.size()) break;
      const size_t size = code_point_size(text, start);
      out.append(text.substr(start, size));
      start += size;
      continue;
    }
    const size_t found = text.find(old, start);
    if (found == std::string_view::npos) break;
    out.append(text.substr(start, found - start));
    out.append(with);
    start = found + old.size();
  }
  out.append(text.substr(start));
  return make_text(std::move(out), budget);
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_size(text, at);
    if (!is_line_break(code_point(text, at))) {
      at += size;
      continue;
    }
    lines.push_back(text.substr(start, at - start));
    at += text.substr(at).starts_with("\r\n") ? 2 : size;
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

Value capitalize(Budget& budget, std::string_view text) {
  if (text.empty()) return make_text(budget, "");
  const size_t size = code_point_size(text, 0);
  return make_text(budget, to_title(text.substr(0, size)) + to_lower(text.substr(size)));
}

Value join_texts(Budget& budget, std::string_view separator, const std::vector<Value>& items) {
  TextBuilder out(budget);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    append_str(out, budget, items[i]);
  }
  return make_text(std::move(out), budget);
}

Value call_text_method(Budget& budget, const std::string& text, std::string_view name,
                       Arguments arguments) {
  budget.step_bytes(text.size());
  if (name == "split" || name == "rsplit")
    return split(budget, text, name == "rsplit", std::move(arguments));
  if (name == "strip") return strip_method(budget, text, {}, std::move(arguments));
  if (name == "lstrip")
    return strip_method(budget, text, {.left = true, .right = false}, std::move(arguments));
  if (name == "rstrip")
    return strip_method(budget, text, {.left = false, .right = true}, std::move(arguments));
  if (name == "startswith" || name == "endswith")
    return Value(matches_end(text, name, std::move(arguments)));
  if (name == "find" || name == "rfind" || name == "index")
    return find_part(text, name, std::move(arguments));
  if (name == "count") return count_parts(text, std::move(arguments));
  if (name == "replace") return replace_method(budget, text, std::move(arguments));
  if (name == "join") return join_method(budget, text, std::move(arguments));
  if (name == "removeprefix" || name == "removesuffix")
    return remove_end(budget, text, name, std::move(arguments));
  if (name == "partition" || name == "rpartition")
    return partition(budget, text, name == "rpartition", std::move(arguments));
  expect_no_arguments(name, std::move(arguments));
  if (name == "upper") return make_text(budget, to_upper(text));
  if (name == "lower") return make_text(budget, to_lower(text));
  if (name == "title") return title(budget, text);
  if (name == "capitalize") return capitalize(budget, text);
  if (name == "splitlines") return make_view_list(budget, split_lines(text));
  if (const auto holds = test_characters(text, name)) return Value(*holds);
  throw RenderFailure{fmt::format("the method \"{}\" of a text is not supported", name)};
}

}  // namespace convoy::jinja
