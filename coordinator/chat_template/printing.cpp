#include "coordinator/chat_template/printing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "coordinator/chat_template/operators.h"
#include "coordinator/chat_template/unicode.h"

namespace convoy::jinja {

namespace {

void append_text_repr(TextBuilder& out, std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_size(text, at);
    const char32_t c = code_point(text, at);
    const auto shown = text.substr(at, size);
    at += size;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.append('\\');
      out.append(shown);
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (is_printable(c) || c > 0x10FFFF) {
      out.append(shown);
    } else if (c < 0x100) {
      out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c)));
    } else if (c < 0x10000) {
      out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)));
    } else {
      out.append(fmt::format("\\U{:08x}", static_cast<uint32_t>(c)));
    }
  }
  out.append(quote);
}

void append_items(TextBuilder& out, Budget& budget, const List& list) {
  bool first = true;
  for (const Value& item : list.items) {
    if (!first) out.append(", ");
    first = false;
    append_repr(out, budget, item);
  }
}

void append_list_repr(TextBuilder& out, Budget& budget, const List& list) {
  switch (list.kind) {
    case ListKind::list:
      out.append('[');
      append_items(out, budget, list);
      out.append(']');
      return;
    case ListKind::tuple:
      out.append('(');
      append_items(out, budget, list);
      out.append(list.items.size() == 1 ? ",)" : ")");
      return;
    case ListKind::keys:
    case ListKind::values:
    case ListKind::items:
      out.append(list.kind == ListKind::keys     ? "dict_keys(["
                 : list.kind == ListKind::values ? "dict_values(["
                                                 : "dict_items([");
      append_items(out, budget, list);
      out.append("])");
      return;
    case ListKind::range:
      throw RenderFailure{"a range cannot be printed; use range(...) | list"};
    case ListKind::generator:
      throw RenderFailure{"a generator cannot be printed; use ... | list"};
  }
}

template <typename Entries, typename AppendKey>
void append_entries(TextBuilder& out, Budget& budget, const Entries& entries,
                    AppendKey append_key) {
  bool first = true;
  out.append('{');
  for (const auto& [key, value] : entries) {
    if (!first) out.append(", ");
    first = false;
    append_key(key);
    out.append(": ");
    append_repr(out, budget, value);
  }
  out.append('}');
}

class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, Budget& budget, const JsonStyle& style)
      : out_(out), budget_(budget), style_(style) {}

  void write(const Value& value, int level) {
    budget_.step();
    if (value.is_none()) return out_.append("null");
    if (const bool* flag = value.as<bool>()) return out_.append(*flag ? "true" : "false");
    if (const Integer* number = value.as<Integer>()) return out_.append(integer_text(*number));
    if (const double* number = value.as<double>()) return out_.append(real(*number));
    if (const std::string* text = value.text()) return write_text(*text);
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    const List* list = value.list();
    if (list != nullptr && (list->kind == ListKind::list || list->kind == ListKind::tuple))
      return write_list(*list, level);
    throw RenderFailure{
        fmt::format("Object of type {} is not JSON serializable", type_name(value))};
  }

 private:
  static std::string real(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return real_text(number);
  }

  void write_text(std::string_view text) {
    out_.append('"');
    size_t plain = 0;  // start of what is copied as it is
    for (size_t at = 0; at < text.size();) {
      const auto byte = static_cast<uint8_t>(text[at]);
      const bool escaped =
          byte < 0x20 || byte == '"' || byte == '\\' || (byte >= 0x80 && style_.ensure_ascii);
      if (!escaped) {
        ++at;
        continue;
      }
      out_.append(text.substr(plain, at - plain));
      const char32_t c = code_point(text, at);
      at += code_point_size(text, at);
      plain = at;
      write_escape(c);
    }
    out_.append(text.substr(plain));
    out_.append('"');
  }

  void write_escape(char32_t c) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    constexpr std::string_view kLetters = "\"\\bfnrt";
    const size_t place = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (place != std::string_view::npos) {
      out_.append('\\');
      out_.append(kLetters[place]);
    } else if (c < 0x10000) {
      out_.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)));
    } else {
      const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
      out_.append(
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)));
    }
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_.append('\n');
    for (int i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  void write_list(const List& list, int level) {
    if (list.items.empty()) return out_.append("[]");
    out_.append('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    new_line(level);
    out_.append(']');
  }

  void write_key(const Value& key) {
    if (const std::string* text = key.text()) return write_text(*text);
    out_.append('"');
    write(key, 0);
    out_.append('"');
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) return out_.append("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return order(budget_, a->first, b->first) < 0;
      });
    }
    out_.append('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(level + 1);
      write_key(entries[i]->first);
      out_.append(style_.key_separator);
      write(entries[i]->second, level + 1);
    }
    new_line(level);
    out_.append('}');
  }

  TextBuilder& out_;
  Budget& budget_;
  const JsonStyle& style_;
};

}  // namespace

std::string integer_text(Integer value) {
  const bool negative = value < 0;
  auto rest = static_cast<unsigned __int128>(value);
  if (negative) rest = 0 - rest;
  std::string digits;
  do {
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t mark = text.find('e');
  std::string digits(text.substr(0, 1));
  if (mark > 2) digits += text.substr(2, mark - 2);
  const int exponent = std::stoi(std::string(text.substr(mark + 1)));
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  const auto point = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, point) + "." + digits.substr(point);
}

void append_repr(TextBuilder& out, Budget& budget, const Value& value) {
  budget.step();
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (const bool* flag = value.as<bool>()) return out.append(*flag ? "True" : "False");
  if (const Integer* number = value.as<Integer>()) return out.append(integer_text(*number));
  if (const double* number = value.as<double>()) return out.append(real_text(*number));
  if (const std::string* text = value.text()) return append_text_repr(out, *text);
  if (const List* list = value.list()) return append_list_repr(out, budget, *list);
  if (const Dict* dict = value.dict())
    return append_entries(out, budget, dict->entries,
                          [&](const Value& key) { append_repr(out, budget, key); });
  if (const auto* space = value.as<NamespacePointer>()) {
    out.append("<Namespace ");
    append_entries(out, budget, (*space)->attributes,
                   [&](const std::string& key) { append_text_repr(out, key); });
    return out.append('>');
  }
  throw RenderFailure{fmt::format("a {} cannot be printed", type_name(value))};
}

void append_str(TextBuilder& out, Budget& budget, const Value& value) {
  if (const std::string* text = value.text()) return out.append(*text);
  if (value.is_undefined()) return;
  append_repr(out, budget, value);
}

Value to_str(Budget& budget, const Value& value) {
  if (value.text() != nullptr) return value;
  TextBuilder out(budget);
  append_str(out, budget, value);
  return make_text(std::move(out), budget);
}

Value to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  TextBuilder out(budget);
  JsonWriter(out, budget, style).write(value, 0);
  return make_text(std::move(out), budget);
}

}  // namespace convoy::jinja
