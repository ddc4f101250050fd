// Generated tokens to text on two channels: reasoning between the model's markers, and the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/text/text_stream.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {

enum class Channel { reasoning, answer };

/// Where reasoning begins and ends in a generation. Without ids everything is answer.
struct ReasoningMarkers {
  std::optional<int32_t> begin_id;  ///< <think>
  std::optional<int32_t> end_id;    ///< </think>
  bool begins_inside = false;       ///< the prompt ended with the opening marker
};

struct AnswerPiece {
  Channel channel = Channel::answer;
  std::string text;
};

/// Whole characters only, and nothing that a stop string may still take back (TextStream). The
/// markers themselves and the blank lines after the closing one are no text. Stop strings are
/// looked for in the answer.
class AnswerStream {
 public:
  AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
               ReasoningMarkers markers);

  /// TextStream::go_on_after() of the tokens of reasoning and answer that came before the first
  /// push().
  bool go_on_after(std::span<const int32_t> ids);
  /// Adds one token; the piece that may be shown now, maybe empty.
  AnswerPiece push(int32_t id);
  /// What was held back.
  AnswerPiece finish();
  bool stopped() const { return answer_.stopped(); }
  /// How many of the tokens pushed belong to what was shown, when stopped().
  int kept_tokens() const { return tokens_before_answer_ + answer_.kept_tokens(); }

 private:
  bool begins_reasoning(int32_t id) const;
  AnswerPiece show_answer(std::string text);

  const Tokenizer& tokenizer_;
  ReasoningMarkers markers_;
  TextStream reasoning_;
  TextStream answer_;
  Channel channel_ = Channel::answer;
  bool skipping_blank_ = false;  // right after the closing marker
  int tokens_before_answer_ = 0;
};

}  // namespace convoy
