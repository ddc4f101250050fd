#include "coordinator/generate/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/exit_code.h"
#include "coordinator/sampling/sampler.h"
#include "coordinator/text/text_stream.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPaceSlice = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

[[noreturn]] void refuse(const std::string& message) {
  throw FatalError(ExitCode::request_refused, message);
}

// Sleeps until the token is due, looking up for cancellation.
void wait_for_pace(const EngineRun& run, Clock::time_point begin, size_t tokens, double pace) {
  if (pace <= 0) return;
  const auto due = begin + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(static_cast<double>(tokens) / pace));
  while (run.cancelled() == 0 && Clock::now() < due) {
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
                   int max_context_tokens) {
  if (request.prompt_ids.empty()) refuse("the prompt is empty");
  for (const int32_t id : request.prompt_ids) {
    if (id < 0 || id >= config.vocab_size)
      refuse(fmt::format("prompt token id {} is not in the model's vocabulary of {}", id,
                         config.vocab_size));
  }
  if (request.prompt_ids.size() > static_cast<size_t>(max_context_tokens)) {
    refuse(fmt::format(
        "the prompt has {} tokens, the context holds {}; raise --max-context or shorten the prompt",
        request.prompt_ids.size(), max_context_tokens));
  }
  if (const Status status = check_stop_strings(request.stop_strings); !status)
    refuse(status.error());
  if (const Status status = request.sampling.validate(config.vocab_size); !status)
    refuse(status.error());
}

namespace {

// One generation: the state that its loop carries.
class Generation {
 public:
  Generation(EngineRun& run, const Tokenizer& tokenizer, const GenerationRequest& request,
             const TokenSink& sink)
      : run_(run),
        request_(request),
        sink_(sink),
        max_tokens_(request.max_tokens ? static_cast<size_t>(*request.max_tokens) : SIZE_MAX),
        valid_vocab_(std::min(tokenizer.vocab_size(), run.engine().vocab_size())),
        sequence_(run.engine().pages(), 0, run.plan().limits.max_context_tokens),
        stream_(tokenizer, request.stop_strings, request.reasoning) {
    const SamplingOptions& sampling = request.sampling;
    const bool plain = sampling.is_greedy() && sampling.logit_bias.empty() &&
                       sampling.presence_penalty == 0 && sampling.frequency_penalty == 0 &&
                       sampling.repetition_penalty == 1;
    if (!plain) {
      sampler_.emplace(sampling, valid_vocab_);
      sampler_->observe_prompt(request.prompt_ids);
    }
    if (!plain || request.top_logprobs)
      logits_.resize(static_cast<size_t>(run.engine().vocab_size()));
    result_.prompt_tokens = static_cast<int>(request.prompt_ids.size());
  }

  GenerationResult run() {
    if (max_tokens_ == 0) return std::move(result_);
    const auto prefill_begin = Clock::now();
    const auto first = run_.engine().prefill(sequence_, request_.prompt_ids);
    result_.prefill_s = seconds_since(prefill_begin);
    if (!first) return end_by_error(first.error());
    const auto decode_begin = Clock::now();
    if (!sampler_ && logits_.empty() && run_.engine().runs_ahead())
      return run_ahead(first.value(), decode_begin);
    for (int32_t next = choose(first.value());;) {
      if (const auto reason = accept(next, decode_begin)) return finish(*reason);
      Sequence* const lane = &sequence_;
      const Status status = run_.engine().decode({&lane, 1}, {&next, 1}, {&next, 1});
      ++result_.decode_steps;
      result_.decode_s = seconds_since(decode_begin);
      if (!status) return end_by_error(status.error());
      next = choose(next);
    }
  }

 private:
  // The token to follow, from the logits of the last step; `likeliest` is the engine's own greedy
  // choice.
  int32_t choose(int32_t likeliest) {
    if (!logits_.empty()) run_.engine().copy_logits(0, logits_);
    int32_t id = likeliest;
    if (sampler_) {
      const auto drawn = sampler_->draw(logits_, static_cast<uint64_t>(result_.token_ids.size()));
      if (!drawn) refuse(drawn.error());
      id = drawn.value();
    }
    if (request_.top_logprobs)
      result_.logprobs.push_back(token_logprobs(logits_, valid_vocab_, id, *request_.top_logprobs));
    return id;
  }

  // The engine's own greedy choice stands, so the device goes on while the host looks at the text.
  GenerationResult run_ahead(int32_t next, Clock::time_point decode_begin) {
    Sequence* const lane = &sequence_;
    for (;;) {
      while (in_flight_ < Engine::kDecodeAhead &&
             result_.token_ids.size() + in_flight_ + 1 < max_tokens_ &&
             sequence_.length() < sequence_.max_tokens()) {
        if (const Status status = run_.engine().decode_ahead({&lane, 1}); !status)
          return end_by_error(status.error());
        ++in_flight_;
      }
      if (const auto reason = accept(next, decode_begin)) return finish(*reason);
      const Status status = run_.engine().wait_decoded({&next, 1});
      --in_flight_;
      ++result_.decode_steps;
      result_.decode_s = seconds_since(decode_begin);
      if (!status) return end_by_error(status.error());
    }
  }

  // Takes a token into the text; says why it was the last one, if it was.
  std::optional<FinishReason> accept(int32_t id, Clock::time_point decode_begin) {
    if (std::find(request_.stop_ids.begin(), request_.stop_ids.end(), id) !=
        request_.stop_ids.end()) {
      result_.stop_id = id;
      return FinishReason::stop;
    }
    wait_for_pace(run_, decode_begin, result_.token_ids.size(), request_.pace_tokens_per_s);
    result_.token_ids.push_back(id);
    if (sampler_) sampler_->observe(id);
    const bool wanted = show(id, stream_.push(id));
    if (stream_.stopped()) result_.token_ids.resize(static_cast<size_t>(stream_.kept_tokens()));
    if (!wanted || run_.cancelled() != 0) return FinishReason::cancelled;
    if (stream_.stopped()) return FinishReason::stop;
    if (result_.token_ids.size() == max_tokens_ ||
        sequence_.length() - static_cast<int>(in_flight_) == sequence_.max_tokens())
      return FinishReason::length;
    return std::nullopt;
  }

  bool show(int32_t id, const AnswerPiece& piece) {
    (piece.channel == Channel::answer ? result_.text : result_.reasoning) += piece.text;
    return sink_(id, piece);
  }

  GenerationResult finish(FinishReason reason) {
    result_.finish_reason = reason;
    const AnswerPiece rest = stream_.finish();
    if (!rest.text.empty() && !show(-1, rest)) result_.finish_reason = FinishReason::cancelled;
    if (request_.top_logprobs) result_.logprobs.resize(result_.token_ids.size());
    return std::move(result_);
  }

  GenerationResult end_by_error(const std::string& error) {
    if (run_.cancelled() == 0) run_.throw_engine_error(error);
    return finish(FinishReason::cancelled);
  }

  EngineRun& run_;
  const GenerationRequest& request_;
  const TokenSink& sink_;
  size_t max_tokens_;
  int valid_vocab_;
  Sequence sequence_;
  AnswerStream stream_;
  std::optional<Sampler> sampler_;  // none: the engine's greedy choice stands
  std::vector<float> logits_;       // empty: nobody looks at them
  size_t in_flight_ = 0;            // decode steps whose token the host does not know yet
  GenerationResult result_;
};

}  // namespace

GenerationResult generate(EngineRun& run, const Tokenizer& tokenizer,
                          const GenerationRequest& request, const TokenSink& sink) {
  return Generation(run, tokenizer, request, sink).run();
}

}  // namespace convoy
