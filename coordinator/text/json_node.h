// A JSON value together with the place it came from, so that every complaint about a file names the
// file and the key.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// A view: the value must outlive it. Every accessor throws StartError when the value is of another
/// type.
class JsonNode {
 public:
  /// `file` is the file's path, `path` the keys that lead here ("model.vocab"; empty for the whole
  /// document).
  JsonNode(const boost::json::value& value, std::string_view file, std::string path = "")
      : value_(&value), file_(file), path_(std::move(path)) {}

  const boost::json::object& object() const;
  const boost::json::array& array() const;
  std::string_view string() const;
  bool boolean() const;
  int64_t integer() const;
  bool is_string() const { return value_->is_string(); }

  /// The member `key` of an object; nothing when it is missing or null.
  std::optional<JsonNode> find(std::string_view key) const;
  /// The member `key` of an object; StartError when it is missing or null.
  JsonNode at(std::string_view key) const;
  JsonNode item(size_t index) const;
  /// The boolean member `key`, or `otherwise` when it is missing or null.
  bool flag(std::string_view key, bool otherwise) const;

  /// Throws StartError "<file>: <path> <problem>".
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  [[noreturn]] void wrong_type(std::string_view expected) const;

  const boost::json::value* value_;
  std::string_view file_;
  std::string path_;
};

/// Text from a file for an error message: in quotes, on one line, shortened.
std::string in_quotes(std::string_view text);

/// Parses a whole document into `storage`. StartError names `file` and the byte at which it is no
/// JSON.
boost::json::value parse_json(std::string_view text, std::string_view file,
                              boost::json::storage_ptr storage);

}  // namespace convoy
