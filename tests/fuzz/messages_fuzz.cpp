// Conversations as JSON through the stand-in's template: refused, or a prompt whose ids are all in
// the vocabulary and in which messages add no control token.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/check.h"
#include "coordinator/chat/prompt_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path model = CONVOY_SOURCE_DIR "/tests/fixtures/standin";
  static const auto tokenizer = convoy::Tokenizer::load(model);
  static const convoy::PromptBuilder prompts(tokenizer, model);
  static const int32_t turn_end = *tokenizer.added_token("<|im_end|>");

  const auto conversation = convoy::parse_conversation({reinterpret_cast<const char*>(data), size});
  if (!conversation) {
    CONVOY_CHECK(conversation.error().starts_with("messages: "), conversation.error());
    return 0;
  }
  const auto prompt = prompts.build(conversation.value(), false);
  if (!prompt) return 0;
  const auto& ids = prompt.value().ids;
  for (const int32_t id : ids)
    CONVOY_CHECK(id >= 0 && id < tokenizer.vocab_size(), std::to_string(id));
  // The template writes one end per message.
  CONVOY_CHECK_OP(static_cast<size_t>(std::count(ids.begin(), ids.end(), turn_end)), ==,
                  conversation.value().messages.size());
  return 0;
}
