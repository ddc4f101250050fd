#include "coordinator/chat/exact_json.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <string>

namespace convoy {
namespace {

namespace json = boost::json;

// What basic_parser calls: values go onto a stack, numbers are read again from their text.
struct Handler {
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  bool on_document_begin(json::error_code&) {
    stack.reset();
    return true;
  }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return true; }
  bool on_object_end(size_t count, json::error_code&) {
    stack.push_object(count);
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t count, json::error_code&) {
    stack.push_array(count);
    return true;
  }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    stack.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code&) {
    stack.push_key(part);
    return true;
  }
  bool on_string_part(json::string_view part, size_t, json::error_code&) {
    stack.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, json::error_code&) {
    stack.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view part, json::error_code&) {
    number.append(part.data(), part.size());
    return true;
  }
  bool on_int64(int64_t value, json::string_view, json::error_code&) {
    number.clear();
    stack.push_int64(value);
    return true;
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code&) {
    number.clear();
    stack.push_uint64(value);
    return true;
  }
  bool on_double(double value, json::string_view rest, json::error_code&) {
    number.append(rest.data(), rest.size());
    double exact = value;
    std::from_chars(number.data(), number.data() + number.size(), exact);
    number.clear();
    stack.push_double(exact);
    return true;
  }
  bool on_bool(bool value, json::error_code&) {
    stack.push_bool(value);
    return true;
  }
  bool on_null(json::error_code&) {
    stack.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

  json::value_stack stack;
  std::string number;  // text of a number that came in parts
};

}  // namespace

Result<json::value> parse_exact_json(std::string_view text) {
  json::basic_parser<Handler> parser{json::parse_options()};
  json::error_code error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (!error && text.find_first_not_of(" \t\r\n", used) != std::string_view::npos)
    error = json::error::extra_data;
  if (error) return Error{fmt::format("not valid JSON near byte {}: {}", used, error.message())};
  return parser.handler().stack.release();
}

}  // namespace convoy
