#include "shared/model/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <set>
#include <vector>

#include "base/exit_code.h"

namespace convoy {
namespace json = boost::json;
namespace {

using boost::json::error_code;
using boost::json::string_view;

/// Notices repeated keys, which a parsed value no longer shows, and accepts everything else.
class RepeatedKeyFinder {
 public:
  // Names that basic_parser asks for.
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

  const std::string& repeated_key() const { return repeated_; }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t, error_code&) { return true; }
  bool on_key_part(string_view part, std::size_t, error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(string_view part, std::size_t, error_code& ec) {
    key_.append(part.data(), part.size());
    if (!keys_.back().insert(key_).second) {
      repeated_ = key_;
      ec = json::make_error_code(json::error::syntax);
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(string_view, std::size_t, error_code&) { return true; }
  bool on_string(string_view, std::size_t, error_code&) { return true; }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t, string_view, error_code&) { return true; }
  bool on_uint64(std::uint64_t, string_view, error_code&) { return true; }
  bool on_double(double, string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  std::vector<std::set<std::string>> keys_;  // one set per open object
  std::string key_;
  std::string repeated_;
};

[[noreturn]] void refuse_text(std::string_view text, std::size_t at, const std::string& where,
                              const std::string& why) {
  const std::string_view before = text.substr(0, std::min(at, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0: the first line
  throw StartError(fmt::format("{}: invalid JSON at line {}, column {}: {}", where, line,
                               before.size() - line_start + 1, why));
}

}  // namespace

json::value parse_json(std::string_view text, const std::string& where) {
  if (text.empty()) throw StartError(fmt::format("{}: empty; JSON expected", where));
  json::basic_parser<RepeatedKeyFinder> finder{json::parse_options{}};
  error_code ec;
  const std::size_t used = finder.write_some(false, text.data(), text.size(), ec);
  if (!finder.handler().repeated_key().empty()) {
    refuse_text(text, used, where,
                fmt::format("key {} appears twice", shown_name(finder.handler().repeated_key())));
  }
  if (ec) refuse_text(text, used, where, ec.message());
  if (used != text.size()) refuse_text(text, used, where, "text after the end of the value");
  json::value value = json::parse(string_view(text.data(), text.size()), ec);
  if (ec) refuse_text(text, used, where, ec.message());
  return value;
}

std::string shown_name(std::string_view text) {
  constexpr std::size_t kShown = 200;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

JsonFields::JsonFields(const json::value& value, std::string where) : where_(std::move(where)) {
  object_ = value.if_object();
  if (object_ == nullptr) {
    throw StartError(fmt::format("{}: a JSON {}; an object is expected", where_,
                                 std::string(json::to_string(value.kind()))));
  }
}

const json::value* JsonFields::find(std::string_view key) const {
  const json::value* value = object_->if_contains(string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<JsonFields> JsonFields::find_object(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, *value, "an object");
  return JsonFields(*value, fmt::format("{}: {}", where_, key));
}

std::optional<int64_t> integer_in(const json::value& value, int64_t minimum, int64_t maximum) {
  const int64_t* number = value.if_int64();
  if (number == nullptr || *number < minimum || *number > maximum) return std::nullopt;
  return *number;
}

int JsonFields::integer(std::string_view key, int minimum, int maximum) const {
  const json::value* value = find(key);
  if (value == nullptr) throw StartError(fmt::format("{}: {} is missing", where_, key));
  const std::optional<int64_t> number = integer_in(*value, minimum, maximum);
  if (!number) refuse(key, *value, fmt::format("an integer in {}..{}", minimum, maximum));
  return static_cast<int>(*number);
}

int JsonFields::integer_or(std::string_view key, int otherwise, int minimum, int maximum) const {
  return find(key) == nullptr ? otherwise : integer(key, minimum, maximum);
}

std::optional<double> JsonFields::find_number(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, *value, "a number");
  return value->to_number<double>();
}

std::optional<bool> JsonFields::find_bool(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) refuse(key, *value, "true or false");
  return value->get_bool();
}

std::optional<std::string> JsonFields::find_string(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, *value, "a string");
  return std::string(value->get_string());
}

void JsonFields::refuse(std::string_view key, const json::value& value,
                        const std::string& allowed) const {
  std::string shown =
      value.is_string() ? shown_name(std::string_view(value.get_string())) : json::serialize(value);
  if (shown.size() > 210) shown = shown.substr(0, 200) + "...";
  throw StartError(fmt::format("{}: {} is {}; allowed: {}", where_, key, shown, allowed));
}

}  // namespace convoy
