#include "coordinator/chat_template/checkpoint_template.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <fstream>

#include "base/exit_code.h"

namespace convoy {

namespace {

namespace json = boost::json;

constexpr uintmax_t kMaxFileBytes = 64 << 20;

// Nothing when the file does not exist.
std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (error) throw StartError(fmt::format("{}: {}", path.string(), error.message()));
    return std::nullopt;
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw StartError(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kMaxFileBytes)
    throw StartError(
        fmt::format("{}: {} bytes; at most {} are allowed", path.string(), size, kMaxFileBytes));
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) throw StartError(fmt::format("{}: cannot be read", path.string()));
  return text;
}

json::object read_config(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return {};
  json::error_code error;
  const json::value value = json::parse(*text, error);
  if (error) throw StartError(fmt::format("{}: invalid JSON: {}", path.string(), error.message()));
  if (!value.is_object()) throw StartError(fmt::format("{}: must be a JSON object", path.string()));
  return value.get_object();
}

// "<s>" or {"content": "<s>", ...}.
const json::value* token_text(const json::value& token) {
  if (token.is_string()) return &token;
  const json::value* content =
      token.is_object() ? token.get_object().if_contains("content") : nullptr;
  return content != nullptr && content->is_string() ? content : nullptr;
}

json::object special_tokens(const json::object& config) {
  json::object tokens;
  for (const std::string_view name : {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"}) {
    const json::value* token = config.if_contains(name);
    const json::value* text = token != nullptr ? token_text(*token) : nullptr;
    if (text != nullptr) tokens[name] = *text;
  }
  const json::value* extra = config.if_contains("extra_special_tokens");
  if (extra != nullptr && extra->is_object()) {
    for (const auto& entry : extra->get_object()) {
      if (const json::value* text = token_text(entry.value())) tokens[entry.key()] = *text;
    }
  }
  return tokens;
}

const json::string* text_member(const json::value& entry, std::string_view key) {
  const json::value* member = entry.is_object() ? entry.get_object().if_contains(key) : nullptr;
  return member != nullptr ? member->if_string() : nullptr;
}

json::object without_nulls(const json::object& message) {
  json::object result;
  for (const auto& entry : message) {
    if (!entry.value().is_null()) result.insert(entry);
  }
  for (const std::string_view name : {"reasoning_content", "thinking", "reasoning"}) {
    const json::value* reasoning = result.if_contains(name);
    if (reasoning == nullptr) continue;
    const json::value value = *reasoning;  // the object may move while it grows
    result["reasoning_content"] = value;
    result.emplace("thinking", value);
    break;
  }
  return result;
}

}  // namespace

CheckpointTemplate::CheckpointTemplate(ChatTemplate main, std::optional<ChatTemplate> tool_use,
                                       json::object special_tokens)
    : main_(std::move(main)),
      tool_use_(std::move(tool_use)),
      special_tokens_(std::move(special_tokens)) {}

std::optional<CheckpointTemplate> CheckpointTemplate::load(const std::filesystem::path& directory) {
  const auto config_path = directory / "tokenizer_config.json";
  const json::object config = read_config(config_path);
  const auto template_path = directory / "chat_template.jinja";
  if (auto text = read_file(template_path)) {
    return CheckpointTemplate(ChatTemplate::parse(std::move(*text), template_path.string()),
                              std::nullopt, special_tokens(config));
  }
  const json::value* given = config.if_contains("chat_template");
  if (given == nullptr || given->is_null()) return std::nullopt;
  const std::string where = config_path.string() + " (chat_template)";
  if (const json::string* text = given->if_string())
    return CheckpointTemplate(ChatTemplate::parse(std::string(*text), where), std::nullopt,
                              special_tokens(config));
  if (!given->is_array())
    throw StartError(fmt::format("{}: must be a text or a list of templates", where));
  std::optional<ChatTemplate> main;
  std::optional<ChatTemplate> tool_use;
  for (const json::value& entry : given->get_array()) {
    const json::string* name = text_member(entry, "name");
    const json::string* text = text_member(entry, "template");
    if (name == nullptr || text == nullptr)
      throw StartError(fmt::format("{}: every entry needs a name and a template", where));
    if (*name != "default" && *name != "tool_use") continue;
    auto& chosen = *name == "default" ? main : tool_use;
    chosen = ChatTemplate::parse(std::string(*text),
                                 fmt::format("{}[{}]", where, std::string_view(*name)));
  }
  if (!main) throw StartError(fmt::format("{}: the list has no template named \"default\"", where));
  return CheckpointTemplate(std::move(*main), std::move(tool_use), special_tokens(config));
}

Result<std::string> CheckpointTemplate::render(const json::object& request,
                                               const RenderOptions& options) const {
  json::object context = special_tokens_;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = false;
  for (const auto& entry : request) context[entry.key()] = entry.value();
  if (json::value* messages = context.if_contains("messages");
      messages != nullptr && messages->is_array()) {
    for (json::value& message : messages->get_array()) {
      if (message.is_object()) message = without_nulls(message.get_object());
    }
  }
  const bool has_tools = !context["tools"].is_null();
  return (has_tools && tool_use_ ? *tool_use_ : main_).render(context, options);
}

}  // namespace convoy
