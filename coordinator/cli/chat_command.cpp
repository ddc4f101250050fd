// `convoy chat`: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <limits>

#include "base/exit_code.h"
#include "coordinator/chat/prompt_builder.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/generate_report.h"
#include "coordinator/cli/sampling_flags.h"
#include "coordinator/console/end_by_signal.h"
#include "coordinator/console/line_editor.h"
#include "coordinator/console/output.h"
#include "coordinator/generate/generation.h"
#include "coordinator/text/utf8.h"

namespace convoy {
namespace {

namespace json = boost::json;
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";
constexpr const char* kHelp =
    "/reset        forget the conversation\n"
    "/system TEXT  set the system message (empty: none) and forget the conversation\n"
    "/stats        speed of the last answer and the stages\n"
    "/exit         leave (or Ctrl-D); Ctrl-C stops an answer\n";

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  bool no_thinking = false;
  int max_tokens = -1;
};

/// One conversation: what was said, and what runs the answers.
class ChatSession {
 public:
  ChatSession(EngineRun& run, const Tokenizer& tokenizer, const PromptBuilder& prompts,
              GenerationRequest request, const ChatFlags& flags)
      : run_(run),
        tokenizer_(tokenizer),
        prompts_(prompts),
        request_(std::move(request)),
        no_thinking_(flags.no_thinking),
        system_(flags.system),
        output_(run.stop_fd()) {
    run_.set_interrupt_handler([this] { interrupted_.store(true, std::memory_order_relaxed); });
    request_.interrupted = [this] { return interrupted_.load(std::memory_order_relaxed); };
    reset();
  }
  ~ChatSession() { run_.set_interrupt_handler({}); }
  ChatSession(const ChatSession&) = delete;
  ChatSession& operator=(const ChatSession&) = delete;

  bool reader_gone() const { return output_.reader_gone(); }
  /// Follows one line; false ends the program.
  bool follow(const std::string& line) {
    if (line.empty()) return true;
    if (line.front() != '/') return answer(line);
    const std::string word = line.substr(0, line.find(' '));
    if (word == "/exit" || word == "/quit") return false;
    if (word == "/reset") return reset();
    if (word == "/system") {
      system_ = line.size() > word.size() ? line.substr(word.size() + 1) : "";
      return reset();
    }
    if (word == "/stats") return stats();
    return say(word == "/help" ? kHelp : fmt::format("{} is no command; /help lists them\n", word));
  }

 private:
  bool say(std::string_view text) { return output_.write(text); }

  bool reset() {
    conversation_.messages.clear();
    if (!system_.empty())
      conversation_.messages.push_back({{"role", "system"}, {"content", system_}});
    return true;
  }

  bool stats() {
    if (!last_) return say("nothing was answered yet\n");
    return say(generation_summary(*last_, request_, run_, run_.stage_reports()));
  }

  bool answer(const std::string& text) {
    conversation_.messages.push_back({{"role", "user"}, {"content", text}});
    const auto prompt =
        prompts_.build(conversation_, no_thinking_ ? std::optional(false) : std::nullopt);
    if (!prompt) return refuse(prompt.error());
    request_.prompt_ids = prompt.value().ids;
    request_.turns = prompt.value().turns;
    request_.reasoning = prompt.value().reasoning;
    const auto context = static_cast<size_t>(run_.plan().limits.max_context_tokens);
    if (request_.prompt_ids.size() > context) {
      return refuse(fmt::format(
          "the conversation has {} tokens, the context holds {}; /reset begins a new one",
          request_.prompt_ids.size(), context));
    }
    interrupted_.store(false, std::memory_order_relaxed);
    last_ = generate(run_, tokenizer_, request_, [&](int32_t, const AnswerPiece& piece) {
      return show(piece) && !request_.interrupted();
    });
    const bool reader_there = end_answer();
    keep_answer();
    return reader_there && run_.cancelled() == 0;
  }

  void keep_answer() {
    if (last_->token_ids.empty() && last_->finish_reason == FinishReason::cancelled)
      return conversation_.messages.pop_back();  // the message that nothing answered
    json::object message{{"role", "assistant"}, {"content", last_->text}};
    if (!last_->reasoning.empty()) message["reasoning_content"] = last_->reasoning;
    conversation_.messages.push_back(message);
  }

  // The message that could not be answered is taken back.
  bool refuse(const std::string& why) {
    conversation_.messages.pop_back();
    return say(why + "\n");
  }

  // Reasoning is dimmed where stdout is a terminal.
  bool show(const AnswerPiece& piece) {
    if (piece.text.empty()) return true;
    const bool dim = colours_ && piece.channel == Channel::reasoning;
    std::string text;
    if (dim != dimmed_) text = dim ? kDim : fmt::format("{}\n", kPlain);
    dimmed_ = dim;
    return say(text + piece.text);
  }

  bool end_answer() {
    const bool was_dimmed = std::exchange(dimmed_, false);
    const bool cut = last_->finish_reason == FinishReason::cancelled;
    return say(fmt::format("{}{}\n", was_dimmed ? kPlain : "", cut ? " [stopped]" : ""));
  }

  EngineRun& run_;
  const Tokenizer& tokenizer_;
  const PromptBuilder& prompts_;
  GenerationRequest request_;
  bool no_thinking_;
  std::string system_;
  RunOutput output_;
  Conversation conversation_;
  std::optional<GenerationResult> last_;
  std::atomic<bool> interrupted_{false};
  bool colours_ = ::isatty(STDOUT_FILENO) != 0;
  bool dimmed_ = false;
};

class ChatCommand : public Command {
 public:
  explicit ChatCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "chat", "Talk with the model in the terminal; /help there lists what can be typed");
    app->add_option("--system", flags_.system, "System message");
    app->add_flag("--no-thinking", flags_.no_thinking,
                  "Ask the template for answers without reasoning");
    app->add_option("-n,--max-tokens", flags_.max_tokens,
                    "Most tokens of one answer (default: until a stop id or the context ends)")
        ->check(CLI::Range(1, std::numeric_limits<int>::max()));
    add_plan_options(*app, twins, flags_.engine);
    add_run_options(*app, twins, flags_.engine);
    flags_.sampling.add_to(*app);
  }

  int run() override {
    EngineFlags engine = flags_.engine;
    engine.several_prompts = true;
    const RunOptions options = resolve(engine, twins);
    const Checkpoint checkpoint = Checkpoint::open(options.model_directory, options.load_format);
    const Tokenizer tokenizer = load_tokenizer(options, "chat");
    const PromptBuilder prompts(tokenizer, options.model_directory);
    GenerationRequest request;
    if (find_invalid_utf8(flags_.system))
      throw FatalError(ExitCode::request_refused, "--system is not well-formed UTF-8");
    if (flags_.max_tokens > 0) request.max_tokens = flags_.max_tokens;
    request.stop_ids = checkpoint.config().stop_token_ids;
    request.sampling = flags_.sampling.resolve(checkpoint.directory());

    ProgressDisplay display(ProgressDisplay::Mode::automatic);
    int signal_to_raise = 0;
    {
      EngineRun engine_run(options, plan_run(checkpoint.config(), options), checkpoint,
                           tokenizer.vocab_size(), display);
      ChatSession session(engine_run, tokenizer, prompts, std::move(request), flags_);
      LineEditor editor("> ", engine_run.stop_fd());
      if (editor.interactive())
        write_stderr("Type a message; /help lists commands, Ctrl-D leaves.\n");
      for (auto line = editor.read(); line && session.follow(*line); line = editor.read()) continue;
      signal_to_raise = engine_run.ending_signal(session.reader_gone());
    }
    if (signal_to_raise != 0) end_by_signal(signal_to_raise);
    return static_cast<int>(ExitCode::done);
  }

 private:
  ChatFlags flags_;
};

}  // namespace

std::unique_ptr<Command> add_chat_command(CLI::App& app) {
  return std::make_unique<ChatCommand>(app);
}

}  // namespace convoy
