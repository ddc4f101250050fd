// The chat template that comes with a checkpoint.
#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "coordinator/chat_template/chat_template.h"

namespace convoy {

/// Immutable; render may be called from several threads at once.
class CheckpointTemplate {
 public:
  /// Reads `directory`/chat_template.jinja, else chat_template of
  /// `directory`/tokenizer_config.json: a text, or a list of {name, template} of which "default" is
  /// required and "tool_use" is used for requests with tools. The special tokens (bos_token,
  /// eos_token...) come from tokenizer_config.json in either case. Nothing when there is no
  /// template. Throws StartError that names the file and the place.
  static std::optional<CheckpointTemplate> load(const std::filesystem::path& directory);

  /// The prompt for a request in OpenAI's form: {"messages": [...], "tools": [...],
  /// "add_generation_prompt": true, "enable_thinking": false, ...}; every member is a variable of
  /// the template. As Hugging Face's apply_chat_template does, this adds the special tokens, tools
  /// and documents (none), add_generation_prompt (false) where the request has no such member,
  /// leaves out members of messages that are null, and gives a message's reasoning
  /// (reasoning_content, thinking or reasoning) all of the names reasoning_content and thinking.
  /// Arguments of tool calls are passed on as they are: as text or as an object.
  Result<std::string> render(const boost::json::object& request,
                             const RenderOptions& options = {}) const;

 private:
  CheckpointTemplate(ChatTemplate main, std::optional<ChatTemplate> tool_use,
                     boost::json::object special_tokens);

  ChatTemplate main_;
  std::optional<ChatTemplate> tool_use_;
  boost::json::object special_tokens_;
};

}  // namespace convoy
