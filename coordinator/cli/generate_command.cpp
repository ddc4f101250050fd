#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/exit_code.h"
#include "coordinator/chat/prompt_builder.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/generate_report.h"
#include "coordinator/cli/prompt_input.h"
#include "coordinator/cli/sampling_flags.h"
#include "coordinator/cli/state_flags.h"
#include "coordinator/console/end_by_signal.h"
#include "coordinator/console/output.h"
#include "coordinator/generate/batch.h"
#include "coordinator/generate/generation.h"
#include "coordinator/version.h"

namespace convoy {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt;
  std::string prompt_file;
  std::string prompt_ids;
  std::string messages;
  std::string system;
  bool no_thinking = false;
  bool specials = false;
  int max_tokens = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  SamplingFlags sampling;
  int logprobs = 0;
  bool print_token_ids = false;
  bool json = false;
  bool quiet = false;
  double pace = 0;
  int parallel = 0;
  StateFlags state;
};

// Ends each answer of a batch, on a line of its own.
constexpr const char* kAnswerEnd = "\n\f\n";

class GenerateCommand : public Command {
 public:
  explicit GenerateCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "generate", "Continue a prompt; text to stdout, progress and summary to stderr");
    app->set_version_flag("--version", fmt::format("convoy {}", kVersion));
    auto* prompt = app->add_option("-p,--prompt", flags_.prompt, "The prompt");
    prompt_ = prompt;
    file_ = app->add_option(
                   "-f,--prompt-file", flags_.prompt_file,
                   "Read the prompt from a file, - for stdin (the default where stdin is a pipe)")
                ->excludes(prompt);
    ids_ = app->add_option("--prompt-ids", flags_.prompt_ids, "The prompt as token ids: 1,2,3")
               ->excludes(prompt)
               ->excludes(file_);
    messages_ = app->add_option("--messages", flags_.messages,
                                "A conversation as JSON ([{\"role\": …, \"content\": …}, …]) from "
                                "a file, - for stdin")
                    ->excludes(prompt)
                    ->excludes(file_)
                    ->excludes(ids_);
    app->add_option("--system", flags_.system, "With --messages: a system message put before them")
        ->needs(messages_);
    app->add_flag("--no-thinking", flags_.no_thinking,
                  "With --messages: ask the template for an answer without reasoning")
        ->needs(messages_);
    app->add_flag("--specials", flags_.specials,
                  "Control tokens written in the prompt count as such; otherwise text is text");
    app->add_option("-n,--max-tokens", flags_.max_tokens,
                    "Most tokens to generate (default: until a stop id or the context ends)")
        ->check(CLI::Range(0, std::numeric_limits<int>::max()));
    app->add_option("--stop", flags_.stop, "End before this text; may be given several times")
        ->take_all()
        ->allow_extra_args(false);
    app->add_flag("--ignore-eos", flags_.ignore_eos, "Go on after the model's stop ids");
    logprobs_ =
        app->add_option(
               "--logprobs", flags_.logprobs,
               "With --json: log-probability of each token, and of this many of the likeliest")
            ->check(CLI::Range(0, 20));
    app->add_flag("--print-token-ids", flags_.print_token_ids,
                  "Print token ids, one a line, instead of text (with --stop: at the end)");
    app->add_flag("--json", flags_.json,
                  "Print one JSON object at the end instead of streaming text");
    app->add_flag("--quiet", flags_.quiet, "No progress and no summary");
    pace_ = app->add_option("--pace", flags_.pace,
                            "Show at most this many tokens per second, for watching")
                ->check(CLI::Range(0.01, 1e6));
    parallel_ = app->add_option("--parallel", flags_.parallel,
                                "Every line of --prompt-file or stdin is a prompt, and this many "
                                "are answered at a time; answers come in the order of the lines")
                    ->check(CLI::Range(1, kMaxLanes));
    twins.add(parallel_, "PARALLEL");
    flags_.state.add_to(*app);
    flags_.state.save()->excludes(parallel_);
    for (CLI::Option* other : {prompt, file_, ids_, messages_, parallel_})
      flags_.state.load()->excludes(other);
    add_plan_options(*app, twins, flags_.engine);
    add_run_options(*app, twins, flags_.engine);
    flags_.sampling.add_to(*app);
  }

  bool json() const override { return flags_.json; }

  int run() override {
    EngineFlags engine = flags_.engine;
    engine.several_prompts = parallel_->count() > 0;
    if (engine.several_prompts) engine.lanes = flags_.parallel;
    RunOptions options = resolve(engine, twins);
    if (logprobs_->count() > 0 && !flags_.json)
      throw UsageError("--logprobs are a part of --json, which is not asked for");
    if (parallel_->count() > 0) return run_batch(options);
    flags_.state.check(flags_.max_tokens);
    const bool needs_text = ids_->count() + messages_->count() == 0 && !flags_.state.loads();
    const std::string prompt = needs_text ? prompt_text() : "";
    const Checkpoint checkpoint = Checkpoint::open(options.model_directory, options.load_format);
    const Tokenizer tokenizer = load_tokenizer(options, "generate");
    GenerationRequest request = common_request(checkpoint);
    StagePlan plan = plan_run(checkpoint.config(), options);
    const ContextLimit context = context_limit(checkpoint.config(), options, plan);
    flags_.state.take(request, checkpoint, tokenizer, plan, context);
    if (!flags_.state.loads()) take_prompt(request, prompt, tokenizer, checkpoint);
    check_request(request, checkpoint.config(), context);
    flags_.state.check_room(request, checkpoint.config(), plan);

    ProgressDisplay display(progress_mode());
    int signal_to_raise = 0;
    {
      EngineRun run(options, std::move(plan), checkpoint, tokenizer.vocab_size(), display);
      RunOutput output(run.stop_fd());
      const GenerationResult result = generate(
          run, tokenizer, request,
          [&](int32_t id, const AnswerPiece& piece) { return show(output, id, piece.text); });
      finish(output, run, request, result, options);
      signal_to_raise = run.ending_signal(output.reader_gone());
      if (signal_to_raise == 0 && !result.state_error.empty()) throw StartError(result.state_error);
    }
    if (signal_to_raise != 0) end_by_signal(signal_to_raise);
    return static_cast<int>(ExitCode::done);
  }

 private:
  std::string prompt_text() const {
    if (prompt_->count() > 0) return flags_.prompt;
    if (file_->count() > 0) return read_prompt_input("--prompt-file", flags_.prompt_file);
    if (::isatty(STDIN_FILENO) == 0) return read_prompt_input("--prompt-file", "-");
    throw UsageError("no prompt: give --prompt, --prompt-file or --prompt-ids, or pipe text in");
  }

  ProgressDisplay::Mode progress_mode() const {
    return flags_.quiet ? ProgressDisplay::Mode::silent : ProgressDisplay::Mode::automatic;
  }

  int run_batch(RunOptions& options) const {
    const std::string source = twins.source_of("--parallel");
    if (prompt_->count() + ids_->count() + messages_->count() > 0) {
      throw UsageError(fmt::format(
          "{} takes its prompts from --prompt-file or stdin, one a line, and from nothing else",
          source));
    }
    for (const CLI::Option* option : {pace_, flags_.state.save(), flags_.state.load()}) {
      if (option->count() > 0)
        throw UsageError(fmt::format("{} has no {}", source, option->get_name()));
    }
    const std::vector<std::string> lines = prompt_lines(prompt_text());
    if (lines.empty())
      throw FatalError(ExitCode::request_refused, fmt::format("{}: there is no prompt", source));
    options.lanes = static_cast<int>(std::min(static_cast<size_t>(flags_.parallel), lines.size()));
    const Checkpoint checkpoint = Checkpoint::open(options.model_directory, options.load_format);
    const Tokenizer tokenizer = load_tokenizer(options, "generate");
    StagePlan plan = plan_run(checkpoint.config(), options);
    const std::vector<BatchPrompt> prompts = batch_prompts(
        lines, tokenizer, checkpoint, context_limit(checkpoint.config(), options, plan));

    if (std::all_of(prompts.begin(), prompts.end(),
                    [](const BatchPrompt& prompt) { return !prompt.refusal.empty(); }))
      return refuse_all(prompts, options);

    ProgressDisplay display(progress_mode());
    int signal_to_raise = 0;
    int refused = 0;
    {
      EngineRun run(options, std::move(plan), checkpoint, tokenizer.vocab_size(), display);
      RunOutput output(run.stop_fd());
      const BatchCounts counts =
          generate_batch(run, tokenizer, prompts, [&](size_t index, const BatchAnswer& answer) {
            say_refusal(index, answer);
            return output.write(answer_text(index, answer, prompts[index], options));
          });
      refused = counts.refused;
      if (!flags_.quiet)
        write_stderr(
            batch_summary(counts, prompts.front().request.sampling, run, run.stage_reports()));
      signal_to_raise = run.ending_signal(output.reader_gone());
    }
    if (signal_to_raise != 0) end_by_signal(signal_to_raise);
    return static_cast<int>(refused > 0 ? ExitCode::request_refused : ExitCode::done);
  }

  std::vector<BatchPrompt> batch_prompts(const std::vector<std::string>& lines,
                                         const Tokenizer& tokenizer, const Checkpoint& checkpoint,
                                         const ContextLimit& context) const {
    const GenerationRequest common = common_request(checkpoint);
    std::vector<BatchPrompt> prompts;
    for (const std::string& line : lines) {
      BatchPrompt& prompt = prompts.emplace_back(BatchPrompt{common, ""});
      try {
        take_prompt(prompt.request, line, tokenizer, checkpoint);
        check_request(prompt.request, checkpoint.config(), context);
      } catch (const FatalError& error) {
        if (error.code() != ExitCode::request_refused) throw;
        prompt.refusal = error.what();
      }
    }
    return prompts;
  }

  // Nothing is loaded for a batch in which nothing can run.
  int refuse_all(const std::vector<BatchPrompt>& prompts, const RunOptions& options) const {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const BatchAnswer refused{{}, prompts[i].refusal};
      say_refusal(i, refused);
      write_result(answer_text(i, refused, prompts[i], options));
    }
    return static_cast<int>(ExitCode::request_refused);
  }

  static void say_refusal(size_t index, const BatchAnswer& answer) {
    if (!answer.refusal.empty())
      write_stderr(fmt::format("convoy: line {}: {}\n", index + 1, answer.refusal));
  }

  std::string answer_text(size_t index, const BatchAnswer& answer, const BatchPrompt& prompt,
                          const RunOptions& options) const {
    if (flags_.json) return batch_answer_json(index + 1, answer, prompt, options) + "\n";
    if (flags_.print_token_ids)
      return fmt::format("{}{}", fmt::join(answer.result.token_ids, "\n"), kAnswerEnd);
    return answer.result.text + kAnswerEnd;
  }

  // What every prompt of the command line has in common.
  GenerationRequest common_request(const Checkpoint& checkpoint) const {
    GenerationRequest request;
    if (flags_.max_tokens >= 0) request.max_tokens = flags_.max_tokens;
    if (const Status status = check_stop_strings(flags_.stop); !status)
      throw UsageError(fmt::format("--stop: {}", status.error()));
    request.stop_strings = flags_.stop;
    if (!flags_.ignore_eos) request.stop_ids = checkpoint.config().stop_token_ids;
    request.sampling = flags_.sampling.resolve(checkpoint.directory());
    if (logprobs_->count() > 0) request.top_logprobs = flags_.logprobs;
    request.pace_tokens_per_s = flags_.pace;
    return request;
  }

  void take_prompt(GenerationRequest& request, const std::string& prompt,
                   const Tokenizer& tokenizer, const Checkpoint& checkpoint) const {
    if (ids_->count() > 0) {
      request.prompt_ids = parse_prompt_ids(flags_.prompt_ids);
    } else if (messages_->count() > 0) {
      apply_messages(request, tokenizer, checkpoint.directory());
    } else {
      auto ids = tokenizer.encode(prompt, flags_.specials);
      if (!ids) throw FatalError(ExitCode::request_refused, fmt::format("prompt: {}", ids.error()));
      request.prompt_ids = std::move(ids).value();
    }
  }

  void apply_messages(GenerationRequest& request, const Tokenizer& tokenizer,
                      const std::filesystem::path& model) const {
    auto conversation = parse_conversation(read_prompt_input("--messages", flags_.messages));
    if (!conversation) throw FatalError(ExitCode::request_refused, conversation.error());
    auto& messages = conversation.value().messages;
    if (!flags_.system.empty())
      messages.insert(messages.begin(),
                      boost::json::object{{"role", "system"}, {"content", flags_.system}});
    const auto prompt =
        PromptBuilder(tokenizer, model)
            .build(conversation.value(), flags_.no_thinking ? std::optional(false) : std::nullopt);
    if (!prompt)
      throw FatalError(ExitCode::request_refused, fmt::format("messages: {}", prompt.error()));
    request.prompt_ids = prompt.value().ids;
    request.turns = prompt.value().turns;
    request.reasoning = prompt.value().reasoning;
  }

  // False when nobody reads stdout any more.
  bool show(RunOutput& output, int32_t id, std::string_view text) const {
    if (flags_.json) return true;
    if (!flags_.print_token_ids) return output.write(text);
    if (id < 0 || ids_at_end()) return true;
    return output.write(fmt::format("{}\n", id));
  }

  // A stop string takes back tokens that came before it was complete.
  bool ids_at_end() const { return flags_.print_token_ids && !flags_.stop.empty(); }

  void finish(RunOutput& output, EngineRun& run, const GenerationRequest& request,
              const GenerationResult& result, const RunOptions& options) const {
    const auto stages = run.stage_reports();
    if (flags_.json) {
      output.write(generation_json(result, request, run, stages, options) + "\n");
    } else if (ids_at_end()) {
      std::string ids;
      for (const int32_t id : result.token_ids) ids += fmt::format("{}\n", id);
      output.write(ids);
    } else if (!flags_.print_token_ids && ::isatty(STDOUT_FILENO) != 0) {
      output.write("\n");
    }
    if (!flags_.quiet) write_stderr(generation_summary(result, request, run, stages));
    if (flags_.state.saves() && result.finish_reason == FinishReason::cancelled)
      write_stderr("convoy: no state was saved, the answer was cut\n");
  }

  GenerateFlags flags_;
  CLI::Option* prompt_;
  CLI::Option* file_;
  CLI::Option* ids_;
  CLI::Option* messages_;
  CLI::Option* logprobs_;
  CLI::Option* pace_;
  CLI::Option* parallel_;
};

}  // namespace

std::unique_ptr<Command> add_generate_command(CLI::App& app) {
  return std::make_unique<GenerateCommand>(app);
}

}  // namespace convoy
