#include "coordinator/generate/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/exit_code.h"
#include "coordinator/text/text_stream.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPaceSlice = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

[[noreturn]] void refuse(const std::string& message) { throw FatalError(ExitCode::request_refused, message); }

// Sleeps until the token is due, looking up for cancellation.
void wait_for_pace(const EngineRun& run, Clock::time_point begin, size_t tokens, double pace) {
  if (pace <= 0) return;
  const auto due = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(static_cast<double>(tokens) / pace));
  while (run.cancelled() == 0 && Clock::now() < due) {
    std::this_thread::sleep_for(std::min<Clock::duration>(kPaceSlice, due - Clock::now()));
  }
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
  }
  return "unknown";
}

void check_request(const GenerationRequest& request, const ModelConfig& config, int max_context_tokens) {
  if (request.prompt_ids.empty()) refuse("the prompt is empty");
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= config.vocab_size) refuse(fmt::format("prompt token id {} is not in the model's vocabulary of {}", id, config.vocab_size));
  }
  if (request.prompt_ids.size() > static_cast<size_t>(max_context_tokens)) {
    refuse(fmt::format("the prompt has {} tokens, the context holds {}; raise --max-context or shorten the prompt",
                       request.prompt_ids.size(), max_context_tokens));
  }
  if (const Status status = check_stop_strings(request.stop_strings); !status) refuse(status.error());
}

GenerationResult generate(EngineRun& run, const Tokenizer& tokenizer, const GenerationRequest& request, const TokenSink& sink) {
  GenerationResult result;
  result.prompt_tokens = static_cast<int>(request.prompt_ids.size());
  const int max_context = run.plan().limits.max_context_tokens;
  const size_t max_tokens = request.max_tokens ? static_cast<size_t>(*request.max_tokens) : SIZE_MAX;
  if (max_tokens == 0) return result;

  Engine& engine = run.engine();
  Sequence sequence(engine.pages(), 0, max_context);
  Sequence* const lane = &sequence;
  TextStream stream(tokenizer, request.stop_strings);
  const auto finish = [&](FinishReason reason) {
    result.finish_reason = reason;
    const std::string rest = stream.finish();
    result.text += rest;
    if (!rest.empty() && !sink(-1, rest)) result.finish_reason = FinishReason::cancelled;
    return result;
  };

  const auto prefill_begin = Clock::now();
  const auto first = engine.prefill(sequence, request.prompt_ids);
  result.prefill_s = seconds_since(prefill_begin);
  if (!first) {
    if (run.cancelled() != 0) return finish(FinishReason::cancelled);
    run.throw_engine_error(first.error());
  }

  const auto decode_begin = Clock::now();
  int32_t next = first.value();
  for (;;) {
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), next) != request.stop_ids.end()) {
      result.stop_id = next;
      return finish(FinishReason::stop);
    }
    wait_for_pace(run, decode_begin, result.token_ids.size(), request.pace_tokens_per_s);
    result.token_ids.push_back(next);
    const std::string text = stream.push(next);
    result.text += text;
    const bool stopped = stream.stopped();
    if (stopped) result.token_ids.resize(static_cast<size_t>(stream.kept_tokens()));
    if (!sink(next, text) || run.cancelled() != 0) return finish(FinishReason::cancelled);
    if (stopped) return finish(FinishReason::stop);
    if (result.token_ids.size() == max_tokens || sequence.length() == max_context) return finish(FinishReason::length);

    const Status status = engine.decode({&lane, 1}, {&next, 1}, {&next, 1});
    result.decode_s = seconds_since(decode_begin);
    ++result.decode_steps;
    if (!status) {
      if (run.cancelled() != 0) return finish(FinishReason::cancelled);
      run.throw_engine_error(status.error());
    }
  }
}

}  // namespace convoy
