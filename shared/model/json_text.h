// Strict JSON for files that people download: errors say where, and every value is range-checked
// when it is read. Private to this box (Boost.JSON stays behind it).
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// Parses RFC 8259 JSON, at most 32 levels deep; a key that appears twice in one object is an
/// error, since parsers disagree on which one counts. Throws StartError "<where>: invalid JSON at
/// line 3, column 7: <reason>".
boost::json::value parse_json(std::string_view text, const std::string& where);

/// `text` in double quotes, control characters escaped, at most about 200 characters: for names
/// that come from files.
std::string shown_name(std::string_view text);

/// One JSON object and the words that name it in messages. A key whose value is null counts as
/// absent. Refers to the value it was made from.
class JsonFields {
 public:
  /// Throws StartError if `value` is not an object.
  JsonFields(const boost::json::value& value, std::string where);

  const std::string& where() const { return where_; }
  const boost::json::object& object() const { return *object_; }
  /// nullptr: absent or null.
  const boost::json::value* find(std::string_view key) const;
  std::optional<JsonFields> find_object(std::string_view key) const;

  // Each throws StartError naming the key, its value and what is allowed. Without a default the key
  // is required.
  int integer(std::string_view key, int minimum, int maximum) const;
  int integer_or(std::string_view key, int otherwise, int minimum, int maximum) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;

  [[noreturn]] void refuse(std::string_view key, const boost::json::value& value,
                           const std::string& allowed) const;

 private:
  const boost::json::object* object_;
  std::string where_;
};

/// The integer that `value` holds if it is one within the limits (5 and not 5.0).
std::optional<int64_t> integer_in(const boost::json::value& value, int64_t minimum,
                                  int64_t maximum);

}  // namespace convoy
