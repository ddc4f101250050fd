#include "coordinator/cli/state_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/exit_code.h"
#include "coordinator/chat/prompt_builder.h"
#include "coordinator/generate/answer_stream.h"
#include "shared/state/model_fingerprint.h"
#include "shared/state/state_file.h"

namespace convoy {

void StateFlags::add_to(CLI::App& command) {
  save_ = command.add_option("--save-state", save_file_,
                             "Save the sequence after the last token, to go on with later");
  load_ = command.add_option("--load-state", load_file_,
                             "Go on where a saved sequence ended, over any split");
}

void StateFlags::check(int max_tokens) const {
  if (saves() && max_tokens == 0)
    throw UsageError("--save-state: a state ends with a generated token, -n 0 generates none");
  for (const CLI::Option* file : {save_, load_}) {
    if (file->count() > 0 && file->as<std::string>().empty())
      throw UsageError(fmt::format("{} has no file name", file->get_name()));
  }
}

void StateFlags::take(GenerationRequest& request, const Checkpoint& checkpoint,
                      const Tokenizer& tokenizer, const StagePlan& plan,
                      const ContextLimit& context) const {
  if (!loads() && !saves()) return;
  request.save_state = save_file_;
  request.model = model_fingerprint(checkpoint);
  if (!loads()) return;
  request.loaded_state = std::make_shared<StateFileReader>(load_file_, checkpoint.config(),
                                                           plan.stages.front().device.kind,
                                                           plan.limits.kv_dtype, request.model);
  const StateDescription& state = request.loaded_state->description();
  const auto prompt_end = state.ids.begin() + static_cast<ptrdiff_t>(state.prompt_tokens);
  request.prompt_ids.assign(state.ids.begin(), prompt_end);
  request.continued_ids.assign(prompt_end, state.ids.end());
  if (state.text != StateText::plain) {
    request.reasoning = reasoning_markers(tokenizer, state.text == StateText::inside_reasoning);
  }
  if (state.ids.size() > static_cast<size_t>(context.tokens)) {
    throw FatalError(
        ExitCode::request_refused,
        fmt::format("state {} has {} tokens, {}", load_file_, state.ids.size(), describe(context)));
  }
  refuse_ended(request, tokenizer);
}

// Before a long answer whose state could not be written. How long one without -n becomes nobody
// knows.
void StateFlags::check_room(const GenerationRequest& request, const ModelConfig& config,
                            const StagePlan& plan) const {
  if (!saves()) return;
  const int prompt = static_cast<int>(request.prompt_ids.size() + request.continued_ids.size());
  const int tokens =
      request.max_tokens ? positions_of(request, plan.limits.max_context_tokens) : prompt;
  check_state_target(
      save_file_,
      state_layout(config, plan.limits.kv_dtype, static_cast<uint32_t>(tokens)).file_bytes);
}

// One uninterrupted run would have ended where the state ends.
void StateFlags::refuse_ended(const GenerationRequest& request, const Tokenizer& tokenizer) const {
  const auto& ids = request.continued_ids;
  const auto& stops = request.stop_ids;
  const auto refuse = [this](const std::string& why) {
    throw FatalError(ExitCode::request_refused,
                     fmt::format("state {} ends at {}", load_file_, why));
  };
  if (!ids.empty() && std::find(stops.begin(), stops.end(), ids.back()) != stops.end())
    refuse(fmt::format("the stop id {}; --ignore-eos goes on after it", ids.back()));
  if (AnswerStream(tokenizer, request.stop_strings, request.reasoning).go_on_after(ids))
    refuse("a stop string; without that --stop the text goes on after it");
}

}  // namespace convoy
