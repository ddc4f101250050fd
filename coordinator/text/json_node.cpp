#include "coordinator/text/json_node.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/exit_code.h"

namespace convoy {

namespace json = boost::json;

const json::object& JsonNode::object() const {
  if (const auto* object = value_->if_object()) return *object;
  wrong_type("an object");
}

const json::array& JsonNode::array() const {
  if (const auto* array = value_->if_array()) return *array;
  wrong_type("an array");
}

std::string_view JsonNode::string() const {
  if (const auto* text = value_->if_string()) return {text->data(), text->size()};
  wrong_type("a string");
}

bool JsonNode::boolean() const {
  if (const auto* value = value_->if_bool()) return *value;
  wrong_type("true or false");
}

int64_t JsonNode::integer() const {
  if (const auto* value = value_->if_int64()) return *value;
  wrong_type("an integer");
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const auto* member = object().if_contains(json::string_view(key.data(), key.size()));
  if (member == nullptr || member->is_null()) return std::nullopt;
  return JsonNode(*member, file_,
                  path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (auto member = find(key)) return *std::move(member);
  fail(fmt::format("has no {}", in_quotes(key)));
}

JsonNode JsonNode::item(size_t index) const {
  return JsonNode(array().at(index), file_, fmt::format("{}[{}]", path_, index));
}

bool JsonNode::flag(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

void JsonNode::fail(std::string_view problem) const {
  throw StartError(
      fmt::format("{}: {} {}", file_, path_.empty() ? "the document" : path_, problem));
}

void JsonNode::wrong_type(std::string_view expected) const {
  fail(fmt::format("is {}, {} was expected", json::to_string(value_->kind()).data(), expected));
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

json::value parse_json(std::string_view text, std::string_view file, json::storage_ptr storage) {
  json::parser parser(std::move(storage));
  json::error_code error;
  const size_t parsed = parser.write(text.data(), text.size(), error);
  if (error) {
    throw StartError(fmt::format("{}: not valid JSON near byte {} of {}: {}", file, parsed,
                                 text.size(), error.message()));
  }
  return parser.release();
}

}  // namespace convoy
