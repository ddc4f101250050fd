#include "coordinator/sampling/generation_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <fstream>
#include <limits>

#include "base/exit_code.h"

namespace convoy {
namespace {

namespace json = boost::json;

constexpr std::uintmax_t kMaxFileBytes = 1 << 20;

// The members of the document, by name, with messages that say where.
class Fields {
 public:
  Fields(const json::object& object, const std::string& file) : object_(object), file_(file) {}

  bool boolean(std::string_view key, bool otherwise) const {
    const json::value* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) refuse(key, *value, "true or false");
    return value->get_bool();
  }
  double number(std::string_view key, double otherwise) const {
    const json::value* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(key, *value, "a number");
    return value->to_number<double>();
  }
  int64_t integer(std::string_view key, int64_t otherwise) const {
    const json::value* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_int64()) refuse(key, *value, "an integer");
    return value->get_int64();
  }

 private:
  const json::value* find(std::string_view key) const {
    const json::value* value = object_.if_contains(json::string_view(key.data(), key.size()));
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[noreturn]] void refuse(std::string_view key, const json::value& value,
                           std::string_view allowed) const {
    constexpr size_t kShownBytes = 60;
    std::string shown = json::serialize(value);
    if (shown.size() > kShownBytes) shown = shown.substr(0, kShownBytes) + "...";
    throw StartError(fmt::format("{}: {} is {}; allowed is {}", file_, key, shown, allowed));
  }

  const json::object& object_;
  const std::string& file_;
};

}  // namespace

SamplingOptions parse_generation_config(std::string_view text, const std::string& file) {
  json::error_code error;
  const json::value document = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) throw StartError(fmt::format("{}: invalid JSON: {}", file, error.message()));
  if (!document.is_object()) {
    throw StartError(fmt::format("{}: the document is not an object", file));
  }
  const Fields fields(document.get_object(), file);
  SamplingOptions options;
  options.greedy = !fields.boolean("do_sample", false);
  options.temperature = fields.number("temperature", options.temperature);
  options.top_k = fields.integer("top_k", options.top_k);
  options.top_p = fields.number("top_p", options.top_p);
  options.min_p = fields.number("min_p", options.min_p);
  options.repetition_penalty = fields.number("repetition_penalty", options.repetition_penalty);
  if (const Status allowed = options.validate(std::numeric_limits<int>::max()); !allowed) {
    throw StartError(fmt::format("{}: {}", file, allowed.error()));
  }
  return options;
}

SamplingOptions read_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return parse_generation_config("{}", path.string());
  if (status.type() != std::filesystem::file_type::regular) {
    throw StartError(fmt::format("{}: not a regular file{}", path.string(),
                                 error ? " (" + error.message() + ")" : std::string()));
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxFileBytes) {
    throw StartError(fmt::format(
        "{}: {}", path.string(),
        error ? error.message() : fmt::format("{} bytes; allowed are {}", bytes, kMaxFileBytes)));
  }
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in) throw StartError(fmt::format("{}: cannot be read", path.string()));
  return parse_generation_config(text, path.string());
}

}  // namespace convoy
