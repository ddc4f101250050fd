// Many prompts through one engine: as many at a time as a step has lanes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "coordinator/generate/generation.h"

namespace convoy {

/// One prompt of a batch as it came in.
struct BatchPrompt {
  GenerationRequest request;
  std::string refusal;  ///< why it cannot run; empty: check_request() has passed it
};

/// What became of one prompt.
struct BatchAnswer {
  GenerationResult result;
  std::string refusal;  ///< not empty: it was refused, and `result` says nothing
};

/// Told of every answer in the order of the prompts. Returning false cancels the rest, and nothing
/// more is told.
using BatchSink = std::function<bool(size_t index, const BatchAnswer& answer)>;

struct BatchCounts {
  int answered = 0;
  int refused = 0;
  int cancelled = 0;
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  int steps = 0;  ///< decode steps, each of one or more lanes
  double prefill_s = 0;
  double decode_s = 0;
};

/// Runs prompts in their order; a lane whose answer has ended takes the next one at once. A prompt
/// begins when every stage can promise it page groups for its whole prompt and answer, so that none
/// fails half-way; one that never can is refused. Each answer is what generate() gives for its
/// request alone. After a signal every prompt still has its answer: cancelled, with the text so
/// far. Throws FatalError when a stage is lost.
BatchCounts generate_batch(EngineRun& run, const Tokenizer& tokenizer,
                           std::span<const BatchPrompt> prompts, const BatchSink& sink);

}  // namespace convoy
