#include "coordinator/chat/prompt_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/exit_code.h"
#include "coordinator/chat/exact_json.h"
#include "coordinator/chat/message_guard.h"

namespace convoy {
namespace {

namespace json = boost::json;
constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kTurnBegin = "<|im_start|>";

std::string_view trim_newlines(std::string_view text) {
  const size_t begin = text.find_first_not_of('\n');
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of('\n') - begin + 1);
}

// Clients send an answer's reasoning back inside its content. Templates tell the two apart by the
// markers, which the guard hides from them, so it is done here, in the way of the Qwen templates.
void separate_reasoning(json::object& message) {
  const auto* role = message.if_contains("role");
  auto* content = message.if_contains("content");
  if (role == nullptr || *role != "assistant" || content == nullptr || !content->is_string() ||
      message.contains("reasoning_content"))
    return;
  const std::string text(content->get_string());
  const size_t end = text.find(kThinkEnd);
  if (end == std::string::npos) return;
  std::string_view reasoning = std::string_view(text).substr(0, end);
  if (const size_t begin = reasoning.rfind(kThinkBegin); begin != std::string_view::npos)
    reasoning.remove_prefix(begin + kThinkBegin.size());
  message["reasoning_content"] = trim_newlines(reasoning);
  const std::string_view answer =
      std::string_view(text).substr(text.rfind(kThinkEnd) + kThinkEnd.size());
  message["content"] = answer.substr(std::min(answer.find_first_not_of('\n'), answer.size()));
}

CheckpointTemplate load_template(const std::filesystem::path& model_directory) {
  auto loaded = CheckpointTemplate::load(model_directory);
  if (!loaded)
    throw StartError(
        fmt::format("{} has no chat template (chat_template.jinja or tokenizer_config.json)",
                    model_directory.native()));
  return std::move(*loaded);
}

// On the wire the arguments of a tool call are JSON in a string; templates want the object.
void unpack_tool_arguments(json::object& message) {
  auto* calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (json::value& call : calls->as_array()) {
    json::object* object = call.if_object();
    json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function != nullptr) object = function->if_object();
    json::value* arguments = object == nullptr ? nullptr : object->if_contains("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    auto parsed = parse_exact_json(arguments->get_string());
    if (parsed && parsed.value().is_object()) *arguments = std::move(parsed).value();
  }
}

std::vector<int> turns_of(const std::vector<int32_t>& ids, std::optional<int32_t> turn_begin) {
  std::vector<int> turns;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == turn_begin) turns.push_back(static_cast<int>(i));
  }
  return turns;
}

bool ends_inside_reasoning(std::string_view rendered) {
  const size_t last = rendered.find_last_not_of(" \n");
  return last != std::string_view::npos && rendered.substr(0, last + 1).ends_with(kThinkBegin);
}

}  // namespace

Result<Conversation> parse_conversation(std::string_view text) {
  auto parsed = parse_exact_json(text);
  if (!parsed) return Error{fmt::format("messages: {}", parsed.error())};
  json::value value = std::move(parsed).value();

  Conversation conversation;
  if (auto* object = value.if_object()) {
    auto* messages = object->if_contains("messages");
    if (messages == nullptr || !messages->is_array())
      return Error{"messages: the object has no list \"messages\""};
    if (auto* tools = object->if_contains("tools"); tools != nullptr && !tools->is_null()) {
      if (!tools->is_array()) return Error{"messages: \"tools\" is no list"};
      conversation.tools = tools->as_array();
    }
    conversation.messages = messages->as_array();
  } else if (auto* list = value.if_array()) {
    conversation.messages = std::move(*list);
  } else {
    return Error{"messages: neither a list of messages nor an object with one"};
  }
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const auto* message = conversation.messages[i].if_object();
    const auto* role = message == nullptr ? nullptr : message->if_contains("role");
    if (role == nullptr || !role->is_string())
      return Error{fmt::format("messages: message {} is no object with a role", i)};
  }
  return conversation;
}

ReasoningMarkers reasoning_markers(const Tokenizer& tokenizer, bool begins_inside) {
  return {.begin_id = tokenizer.added_token(kThinkBegin),
          .end_id = tokenizer.added_token(kThinkEnd),
          .begins_inside = begins_inside};
}

PromptBuilder::PromptBuilder(const Tokenizer& tokenizer,
                             const std::filesystem::path& model_directory)
    : tokenizer_(tokenizer), template_(load_template(model_directory)) {}

Result<ChatPrompt> PromptBuilder::build(const Conversation& conversation,
                                        std::optional<bool> enable_thinking) const {
  json::object context;
  context["messages"] = conversation.messages;
  for (auto& message : context["messages"].as_array()) {
    separate_reasoning(message.as_object());
    unpack_tool_arguments(message.as_object());
  }
  if (!conversation.tools.empty()) context["tools"] = conversation.tools;

  MessageGuard guard(tokenizer_);
  auto guarded = guard.protect(context);
  if (!guarded) return Error{guarded.error()};
  guarded.value()["add_generation_prompt"] = true;
  if (enable_thinking) guarded.value()["enable_thinking"] = *enable_thinking;
  const auto rendered = template_.render(guarded.value());
  if (!rendered) return Error{rendered.error()};

  auto ids = guard.encode(rendered.value());
  if (!ids) return Error{ids.error()};
  std::vector<int> turns = turns_of(ids.value(), tokenizer_.added_token(kTurnBegin));
  return ChatPrompt{
      .ids = std::move(ids).value(),
      .turns = std::move(turns),
      .reasoning = reasoning_markers(tokenizer_, ends_inside_reasoning(rendered.value()))};
}

}  // namespace convoy
