// Messages to prompt tokens, through the checkpoint's own chat template.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "coordinator/chat_template/checkpoint_template.h"
#include "coordinator/generate/answer_stream.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {

/// A conversation as OpenAI-style JSON.
struct Conversation {
  boost::json::array messages;
  boost::json::array tools;
};

/// Parses `[message, …]` or `{"messages": […], "tools": […]}`; every message is an object with a
/// role. Errors name the place.
Result<Conversation> parse_conversation(std::string_view json_text);

struct ChatPrompt {
  std::vector<int32_t> ids;
  std::vector<int> turns;  ///< where in `ids` turns begin: at each "<|im_start|>"
  ReasoningMarkers reasoning;
};

/// The model's markers, "<think>" and "</think>".
ReasoningMarkers reasoning_markers(const Tokenizer& tokenizer, bool begins_inside);

/// Immutable after construction.
class PromptBuilder {
 public:
  /// Throws StartError when the model has no usable template.
  PromptBuilder(const Tokenizer& tokenizer, const std::filesystem::path& model_directory);

  /// `enable_thinking` absent: the template decides. Error: the template refused the messages, or
  /// ran into its limits.
  Result<ChatPrompt> build(const Conversation& conversation,
                           std::optional<bool> enable_thinking) const;

 private:
  const Tokenizer& tokenizer_;
  CheckpointTemplate template_;
};

}  // namespace convoy
