#include "coordinator/generate/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/generate/answer.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A prompt that runs.
struct Lane {
  size_t index;
  AdmittedSequence admitted;
  Answer answer;
  int32_t next = -1;  // chosen and not decoded yet
  Clock::time_point decode_begin;
  Sequence& sequence() const { return *admitted.sequence; }
};

class Batch {
 public:
  Batch(EngineRun& run, const Tokenizer& tokenizer, std::span<const BatchPrompt> prompts,
        const BatchSink& sink)
      : run_(run),
        tokenizer_(tokenizer),
        prompts_(prompts),
        sink_(sink),
        lanes_(static_cast<size_t>(run.plan().limits.lanes)),
        logits_(static_cast<size_t>(run.engine().vocab_size())) {}

  BatchCounts run() {
    while (!over()) {
      if (in_flight_ == 0) fill_lanes();
      if (!over() && running() > 0) decode();
    }
    cancel_rest();
    return counts_;
  }

 private:
  bool over() const { return stopped() || (waiting_ == prompts_.size() && running() == 0); }
  bool stopped() const { return unwanted_ || run_.cancelled() != 0; }
  size_t running() const {
    return static_cast<size_t>(std::count_if(lanes_.begin(), lanes_.end(),
                                             [](const auto& lane) { return lane != nullptr; }));
  }

  void fill_lanes() {
    for (size_t row = 0; row < lanes_.size(); ++row) {
      // A prompt whose answer ends with its first token leaves the lane free again.
      while (!stopped() && lanes_[row] == nullptr && waiting_ < prompts_.size()) {
        if (!begin_next(row)) return;
      }
    }
  }

  // Takes the next prompt on. False: it has to wait for page groups that running ones hold.
  bool begin_next(size_t row) {
    const BatchPrompt& prompt = prompts_[waiting_];
    if (!prompt.refusal.empty()) return refuse_next(prompt.refusal);
    const GenerationRequest& request = prompt.request;
    if (request.max_tokens == 0) {
      Answer nothing(tokenizer_, request, run_.engine().vocab_size());
      end(waiting_++, {std::move(nothing.result()), ""});
      return true;
    }
    auto admitted = run_.sequences().admit(static_cast<int>(row),
                                           positions_of(request, run_.max_sequence_tokens()),
                                           {request.prompt_ids, request.turns});
    if (!admitted) {
      engine_failed(admitted.error());
      return false;
    }
    if (admitted.value().refusal) {
      // Without a running prompt nothing will be given back.
      return running() == 0 && refuse_next(admitted.value().refusal->message());
    }
    lanes_[row].reset(new Lane{.index = waiting_++,
                               .admitted = std::move(admitted).value(),
                               .answer = Answer(tokenizer_, request, run_.engine().vocab_size()),
                               .decode_begin = {}});
    prefill(*lanes_[row], request.prompt_ids);
    return true;
  }

  bool refuse_next(const std::string& why) {
    end(waiting_++, {{}, why});
    return true;
  }

  void prefill(Lane& lane, std::span<const int32_t> prompt_ids) {
    const auto begin = Clock::now();
    const auto first = run_.sequences().prefill(lane.admitted, prompt_ids, lane.answer.rule());
    lane.decode_begin = Clock::now();
    lane.answer.result().prefill_s = seconds_since(begin);
    lane.answer.result().cached_tokens = lane.admitted.cached_tokens;
    counts_.prefill_s += seconds_since(begin);
    if (!first) return engine_failed(first.error());
    take(lane, 0, first.value());
  }

  // One step's tokens. The device runs ahead with the same lanes for as long as all of them go on;
  // of a lane that ends, what is in flight says nothing any more.
  void decode() {
    const auto begin = Clock::now();
    if (in_flight_ == 0) {
      rows_.clear();
      for (size_t row = 0; row < lanes_.size(); ++row) {
        if (lanes_[row] != nullptr) rows_.push_back(row);
      }
      if (!issue()) return;
    }
    while (in_flight_ < Engine::kDecodeAhead && may_run_ahead()) {
      if (!issue()) return;
    }
    std::vector<int32_t> ids(rows_.size());
    const Status status = run_.engine().wait_decoded(ids);
    --in_flight_;
    counts_.decode_s += seconds_since(begin);
    if (!status) return engine_failed(status.error());
    ++counts_.steps;
    for (size_t column = 0; column < rows_.size(); ++column) {
      Lane* const lane = lanes_[rows_[column]].get();
      if (lane == nullptr) continue;  // it ended before this step
      GenerationResult& result = lane->answer.result();
      ++result.decode_steps;
      result.decode_s = seconds_since(lane->decode_begin);
      take(*lane, static_cast<int>(column), ids[column]);
    }
    if (running() == 0) in_flight_ = 0;  // nobody waits; the next prompt makes the engine forget
  }

  bool may_run_ahead() const {
    return run_.engine().runs_ahead() &&
           std::all_of(rows_.begin(), rows_.end(), [this](size_t row) {
             const Lane* const lane = lanes_[row].get();
             return lane != nullptr && !lane->answer.needs_logits() &&
                    lane->answer.tokens() + in_flight_ < lane->answer.max_tokens() &&
                    lane->sequence().length() < lane->sequence().max_tokens();
           });
  }

  // A step of the lanes in rows_: of the tokens chosen last, which only the device knows while
  // others are in flight. False: the run was cancelled.
  bool issue() {
    std::vector<Sequence*> sequences;
    std::vector<int32_t> ids;
    std::vector<DrawRule> rules;
    for (const size_t row : rows_) {
      const Lane& lane = *lanes_[row];
      sequences.push_back(&lane.sequence());
      if (in_flight_ == 0) ids.push_back(lane.next);
      rules.push_back(lane.answer.rule(in_flight_));
    }
    const Status status = run_.engine().decode_ahead(sequences, ids, rules);
    if (!status) engine_failed(status.error());
    if (status) ++in_flight_;
    return status.ok();
  }

  // The token that follows from column `column` of the last step; the lane is gone when it was the
  // last one.
  void take(Lane& lane, int column, int32_t engines) {
    if (lane.answer.needs_logits()) run_.engine().copy_logits(column, logits_);
    const auto id = lane.answer.choose(engines, logits_);
    if (!id) return leave(lane, {{}, id.error()});
    lane.next = id.value();
    if (const auto reason = accept(lane)) finish(lane, *reason);
  }

  std::optional<FinishReason> accept(Lane& lane) const {
    Answer& answer = lane.answer;
    if (answer.ends_at(lane.next)) return FinishReason::stop;
    answer.push(lane.next);
    if (answer.stopped()) return FinishReason::stop;
    if (answer.tokens() == answer.max_tokens() ||
        lane.sequence().length() - static_cast<int>(in_flight_) == lane.sequence().max_tokens())
      return FinishReason::length;
    return std::nullopt;
  }

  void finish(Lane& lane, FinishReason reason) {
    lane.answer.finish(reason);
    leave(lane, {std::move(lane.answer.result()), ""});
  }

  void leave(Lane& lane, BatchAnswer answer) {
    const size_t index = lane.index;
    AdmittedSequence admitted = std::move(lane.admitted);
    lanes_[static_cast<size_t>(admitted.sequence->lane())].reset();
    // After a signal the pipeline takes no more steps, and nothing of the batch runs on.
    const Status retired = run_.sequences().retire(
        std::move(admitted), in_cache(prompts_[index].request, answer.result));
    if (!retired) engine_failed(retired.error());
    end(index, std::move(answer));
  }

  // Every way out of the batch comes through here; answers wait for those before them.
  void end(size_t index, BatchAnswer answer) {
    count(answer);
    ended_.resize(std::max(ended_.size(), index - told_ + 1));
    ended_[index - told_] = std::move(answer);
    while (!unwanted_ && !ended_.empty() && ended_.front()) {
      unwanted_ = !sink_(told_, *ended_.front());
      ended_.pop_front();
      ++told_;
    }
  }

  void count(const BatchAnswer& answer) {
    if (!answer.refusal.empty()) {
      ++counts_.refused;
      return;
    }
    ++(answer.result.finish_reason == FinishReason::cancelled ? counts_.cancelled
                                                              : counts_.answered);
    if (answer.result.prefill_s > 0) counts_.prompt_tokens += answer.result.prompt_tokens;
    counts_.answer_tokens += static_cast<int64_t>(answer.result.token_ids.size());
  }

  void engine_failed(const std::string& error) const {
    if (run_.cancelled() == 0) run_.throw_engine_error(error);
  }

  void cancel_rest() {
    for (const auto& lane : lanes_) {
      if (lane != nullptr) finish(*lane, FinishReason::cancelled);
    }
    while (waiting_ < prompts_.size()) {
      const BatchPrompt& prompt = prompts_[waiting_];
      GenerationResult nothing;
      nothing.prompt_tokens = static_cast<int>(prompt.request.prompt_ids.size());
      nothing.finish_reason = FinishReason::cancelled;
      end(waiting_++, {std::move(nothing), prompt.refusal});
    }
  }

  EngineRun& run_;
  const Tokenizer& tokenizer_;
  std::span<const BatchPrompt> prompts_;
  const BatchSink& sink_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by block-table row; null: free
  std::vector<float> logits_;
  std::vector<size_t> rows_;  // of the lanes in the steps that are in flight, by column
  size_t in_flight_ = 0;      // decode steps whose tokens the host does not know yet
  size_t waiting_ = 0;        // prompts before it have begun or ended
  size_t told_ = 0;           // prompts before it were told
  std::deque<std::optional<BatchAnswer>> ended_;  // from told_ on
  bool unwanted_ = false;                         // nobody reads the answers any more
  BatchCounts counts_;
};

}  // namespace

BatchCounts generate_batch(EngineRun& run, const Tokenizer& tokenizer,
                           std::span<const BatchPrompt> prompts, const BatchSink& sink) {
  return Batch(run, tokenizer, prompts, sink).run();
}

}  // namespace convoy
