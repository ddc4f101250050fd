#include "coordinator/generate/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/exit_code.h"
#include "coordinator/generate/answer.h"
#include "coordinator/text/text_stream.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPaceSlice = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

StateText state_text(const ReasoningMarkers& reasoning) {
  if (reasoning.begins_inside) return StateText::inside_reasoning;
  return reasoning.begin_id || reasoning.end_id ? StateText::chat : StateText::plain;
}

[[noreturn]] void refuse(const std::string& message) {
  throw FatalError(ExitCode::request_refused, message);
}

// Sleeps until the token is due, looking up for cancellation and for lost stages.
void wait_for_pace(const EngineRun& run, Clock::time_point begin, size_t tokens, double pace) {
  if (pace <= 0) return;
  const auto due = begin + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(static_cast<double>(tokens) / pace));
  while (run.cancelled() == 0 && Clock::now() < due) {
    run.throw_failure();
    std::this_thread::sleep_for(std::min<Clock::duration>(kPaceSlice, due - Clock::now()));
  }
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "unknown";
}

void check_request(const GenerationRequest& request, const ModelConfig& config,
                   const ContextLimit& context) {
  if (request.prompt_ids.empty()) refuse("the prompt is empty");
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= config.vocab_size)
      refuse(fmt::format("prompt token id {} is not in the model's vocabulary of {}", id,
                         config.vocab_size));
  }
  if (request.prompt_ids.size() > static_cast<size_t>(context.tokens)) {
    refuse(
        fmt::format("the prompt has {} tokens, {}", request.prompt_ids.size(), describe(context)));
  }
  if (const Status status = check_stop_strings(request.stop_strings); !status)
    refuse(status.error());
  if (const Status status = request.sampling.validate(config.vocab_size); !status)
    refuse(status.error());
}

std::vector<int32_t> in_cache(const GenerationRequest& request, const GenerationResult& result) {
  std::vector<int32_t> ids = request.prompt_ids;
  ids.insert(ids.end(), result.token_ids.begin(), result.token_ids.end());
  return ids;
}

int positions_of(const GenerationRequest& request, int max_sequence_tokens) {
  if (!request.max_tokens) return max_sequence_tokens;
  const int64_t wanted = static_cast<int64_t>(request.prompt_ids.size()) +
                         static_cast<int64_t>(request.continued_ids.size()) + *request.max_tokens -
                         1;
  return static_cast<int>(std::min<int64_t>(wanted, max_sequence_tokens));
}

namespace {

// One generation: the state that its loop carries.
class Generation {
 public:
  Generation(EngineRun& run, AdmittedSequence& admitted, const Tokenizer& tokenizer,
             const GenerationRequest& request, const TokenSink& sink)
      : run_(run),
        request_(request),
        sink_(sink),
        pace_tokens_per_s_(request.pace_tokens_per_s),
        admitted_(admitted),
        sequence_(*admitted.sequence),
        answer_(tokenizer, request, run.engine().vocab_size()) {
    answer_.result().cached_tokens = admitted.cached_tokens;
    if (answer_.needs_logits()) logits_.resize(static_cast<size_t>(run.engine().vocab_size()));
  }

  GenerationResult run() {
    const auto prefill_begin = Clock::now();
    const auto first = begin();
    answer_.result().prefill_s = seconds_since(prefill_begin);
    if (!first) return end_by_error(first.error());
    if (first.value() == Engine::kStopped) return finish(FinishReason::cancelled);
    const auto decode_begin = Clock::now();
    // What runs ahead goes past the place where the state is saved.
    if (logits_.empty() && run_.engine().runs_ahead() && request_.save_state.empty())
      return run_ahead(first.value(), decode_begin);
    for (int32_t next = choose(first.value());;) {
      if (const auto reason = accept(next, decode_begin)) {
        if (*reason != FinishReason::cancelled) try_to_save(next);
        return finish(*reason);
      }
      Sequence* const lane = &sequence_;
      fed_.push_back(next);
      const DrawRule rule = answer_.rule();
      const Status status = run_.engine().decode({&lane, 1}, {&next, 1}, {&next, 1}, {&rule, 1});
      count_step(decode_begin);
      if (!status) return end_by_error(status.error());
      next = choose(next);
    }
  }

 private:
  // The prompt, or the state and the token that it ends with: the engine's choice of what follows.
  Result<int32_t> begin() {
    const DrawRule rule = answer_.rule();
    if (!request_.loaded_state) {
      fed_ = request_.prompt_ids;
      return run_.sequences().prefill(admitted_, request_.prompt_ids, rule, request_.interrupted);
    }
    run_.load_state(sequence_, *request_.loaded_state);
    fed_ = request_.loaded_state->description().ids;
    int32_t next = fed_.back();
    Sequence* const lane = &sequence_;
    if (const Status status = run_.engine().decode({&lane, 1}, {&next, 1}, {&next, 1}, {&rule, 1});
        !status)
      return Error{status.error()};
    return next;
  }

  // The answer stands whatever becomes of its state.
  void try_to_save(int32_t following) {
    try {
      save_state(following);
    } catch (const StartError& error) {
      answer_.result().state_error = error.what();
    }
  }

  // `following`: the token that was chosen last and is not in the cache.
  void save_state(int32_t following) {
    if (request_.save_state.empty()) return;
    std::vector<int32_t> ids = fed_;
    ids.push_back(following);
    StateFileWriter file(request_.save_state, run_.engine().config(),
                         {.kind = run_.plan().stages.front().device.kind,
                          .kv_dtype = run_.plan().limits.kv_dtype,
                          .model = request_.model,
                          .ids = std::move(ids),
                          .prompt_tokens = static_cast<uint32_t>(request_.prompt_ids.size()),
                          .text = state_text(request_.reasoning)});
    run_.save_state(sequence_, file);
  }

  // The token to follow: the engine's, or one from the logits of the last step.
  int32_t choose(int32_t engines) {
    if (!logits_.empty()) run_.engine().copy_logits(0, logits_);
    const auto id = answer_.choose(engines, logits_);
    if (!id) refuse(id.error());
    return id.value();
  }

  // The engine's own choice stands, so the device goes on while the host looks at the text.
  GenerationResult run_ahead(int32_t next, Clock::time_point decode_begin) {
    Sequence* const lane = &sequence_;
    for (;;) {
      while (in_flight_ < Engine::kDecodeAhead &&
             answer_.tokens() + in_flight_ + 1 < answer_.max_tokens() &&
             sequence_.length() < sequence_.max_tokens()) {
        const DrawRule rule = answer_.rule(1 + in_flight_);  // behind `next` and what is in flight
        if (const Status status = run_.engine().decode_ahead({&lane, 1}, {}, {&rule, 1}); !status)
          return end_by_error(status.error());
        ++in_flight_;
      }
      if (const auto reason = accept(choose(next), decode_begin)) return finish(*reason);
      const Status status = run_.engine().wait_decoded({&next, 1});
      --in_flight_;
      count_step(decode_begin);
      if (!status) return end_by_error(status.error());
    }
  }

  void count_step(Clock::time_point decode_begin) {
    ++answer_.result().decode_steps;
    answer_.result().decode_s = seconds_since(decode_begin);
  }

  // Takes a token into the text; says why it was the last one, if it was.
  std::optional<FinishReason> accept(int32_t id, Clock::time_point decode_begin) {
    if (answer_.ends_at(id)) return FinishReason::stop;
    wait_for_pace(run_, decode_begin, answer_.tokens(), pace_tokens_per_s_);
    const bool wanted = sink_(id, answer_.push(id));
    if (!wanted || run_.cancelled() != 0) return FinishReason::cancelled;
    if (answer_.stopped()) return FinishReason::stop;
    if (answer_.tokens() == answer_.max_tokens() ||
        sequence_.length() - static_cast<int>(in_flight_) == sequence_.max_tokens())
      return FinishReason::length;
    return std::nullopt;
  }

  GenerationResult finish(FinishReason reason) {
    const AnswerPiece rest = answer_.finish(reason);
    if (!rest.text.empty() && !sink_(-1, rest))
      answer_.result().finish_reason = FinishReason::cancelled;
    return std::move(answer_.result());
  }

  GenerationResult end_by_error(const std::string& error) {
    if (run_.cancelled() == 0) run_.throw_engine_error(error);
    return finish(FinishReason::cancelled);
  }

  EngineRun& run_;
  const GenerationRequest& request_;
  const TokenSink& sink_;
  double pace_tokens_per_s_;
  AdmittedSequence& admitted_;
  Sequence& sequence_;
  Answer answer_;
  std::vector<int32_t> fed_;   // what the cache holds
  std::vector<float> logits_;  // empty: nobody looks at them
  size_t in_flight_ = 0;       // decode steps whose token the host does not know yet
};

}  // namespace

GenerationResult generate(EngineRun& run, const Tokenizer& tokenizer,
                          const GenerationRequest& request, const TokenSink& sink) {
  if (request.max_tokens == 0)
    return std::move(Answer(tokenizer, request, run.engine().vocab_size()).result());
  // What goes on from a state has no prompt to compute.
  const KeptPrompt prompt =
      request.loaded_state ? KeptPrompt{} : KeptPrompt{request.prompt_ids, request.turns};
  auto admitted =
      run.sequences().admit(0, positions_of(request, run.max_sequence_tokens()), prompt);
  if (!admitted) {
    if (run.cancelled() == 0) run.throw_engine_error(admitted.error());
    Answer nothing(tokenizer, request, run.engine().vocab_size());
    nothing.finish(FinishReason::cancelled);
    return std::move(nothing.result());
  }
  if (admitted.value().refusal) refuse(admitted.value().refusal->message());
  GenerationResult result = Generation(run, admitted.value(), tokenizer, request, sink).run();
  // After a signal the pipeline takes no more steps, and the run is over.
  const Status retired =
      run.sequences().retire(std::move(admitted).value(), in_cache(request, result));
  if (!retired && run.cancelled() == 0) run.throw_engine_error(retired.error());
  return result;
}

}  // namespace convoy
