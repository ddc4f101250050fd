// One prompt in, text out: the loop around the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/generate/answer_stream.h"
#include "coordinator/run/engine_run.h"
#include "coordinator/sampling/logprobs.h"
#include "coordinator/sampling/sampling_options.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {

struct GenerationRequest {
  std::vector<int32_t> prompt_ids;
  std::vector<int> turns;         ///< where in the prompt turns of a chat begin, ascending
  std::optional<int> max_tokens;  ///< none: until a stop id or the context ends
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_ids;  ///< empty: none ends the text (--ignore-eos)
  SamplingOptions sampling;       ///< the seed is drawn by the caller
  std::optional<int>
      top_logprobs;  ///< report each token's log-probability and that many of the likeliest
  ReasoningMarkers reasoning;
  /// Asked between the chunks of the prompt: true gives it up, and the answer is cancelled. May be
  /// empty.
  std::function<bool()> interrupted;
  double pace_tokens_per_s = 0;  ///< 0: as fast as it goes
  /// A state to go on from instead of a prompt: prompt_ids are its prompt then, and continued_ids
  /// what was generated after it, which counts for penalties and draws.
  std::shared_ptr<const StateFileReader> loaded_state;
  std::vector<int32_t> continued_ids;
  /// Where to save the state after the last token; empty: nowhere. `model` goes into the file.
  std::filesystem::path save_state;
  uint64_t model = 0;
};

enum class FinishReason { stop, length, cancelled };
/// "stop", "length" or "cancelled".
const char* finish_reason_name(FinishReason reason);

struct GenerationResult {
  std::string text;                     ///< the answer
  std::string reasoning;                ///< what stood between the reasoning markers
  std::vector<LogprobReport> logprobs;  ///< one per token id, if asked for
  std::vector<int32_t> token_ids;  ///< without the stop id, and without what a stop string cut off
  int prompt_tokens = 0;
  int cached_tokens = 0;  ///< of the prompt: the prefix cache had them
  FinishReason finish_reason = FinishReason::length;
  std::optional<int32_t> stop_id;
  std::string
      state_error;  ///< why the state could not be saved; empty: it was, or was not asked for
  double prefill_s = 0;
  double decode_s = 0;
  int decode_steps = 0;
};

/// Refuses what can never run, before anything is loaded: an empty prompt, ids outside the
/// vocabulary, a prompt that does not fit the context, a bad stop string or sampling option. Throws
/// FatalError (request refused), naming both numbers.
void check_request(const GenerationRequest& request, const ModelConfig& config,
                   const ContextLimit& context);

/// Positions that the request may fill, of at most `max_sequence_tokens`. The last token of an
/// answer is never read again, so it has none.
int positions_of(const GenerationRequest& request, int max_sequence_tokens);

/// Prompt and answer: what a sequence that answered the request holds, and perhaps a token more.
std::vector<int32_t> in_cache(const GenerationRequest& request, const GenerationResult& result);

/// Told of every token and the text that may be shown with it (maybe none; id -1: the rest at the
/// end). Returning false cancels.
using TokenSink = std::function<bool(int32_t id, const AnswerPiece& piece)>;

/// Throws FatalError when a stage is lost, or (request refused) has too few page groups.
/// Cancellation (a signal or the sink) is a result.
GenerationResult generate(EngineRun& run, const Tokenizer& tokenizer,
                          const GenerationRequest& request, const TokenSink& sink);

}  // namespace convoy
