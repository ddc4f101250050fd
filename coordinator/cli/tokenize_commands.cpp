// `convoy tokenize` and `convoy detokenize`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>

#include "base/exit_code.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/input.h"
#include "coordinator/console/output.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {
namespace {

/// What both commands share: the model whose tokenizer is used, and where the input comes from.
class TokenizerCommand : public Command {
 public:
  TokenizerCommand(CLI::App& parent, const std::string& name, const std::string& description,
                   const std::string& input_description) {
    app = parent.add_subcommand(name, description);
    input_ = app->add_option("input", words_, input_description);
    twins.add(app->add_option("-m,--model", flags_.model,
                              "Hugging Face model directory (default: the bundled model)"),
              "MODEL");
    app->add_flag("--specials", specials_, "Control tokens count as such");
    app->add_flag("--json", json_, "Print one JSON object");
  }
  bool json() const override { return json_; }

 protected:
  Tokenizer load_tokenizer() const { return Tokenizer::load(resolve_model(flags_.model)); }
  /// The arguments with a space between them, or stdin when there are none.
  std::string input() const {
    return input_->count() > 0 ? fmt::format("{}", fmt::join(words_, " ")) : read_stdin();
  }

  bool specials_ = false;
  bool json_ = false;

 private:
  EngineFlags flags_;
  std::vector<std::string> words_;
  CLI::Option* input_;
};

class TokenizeCommand : public TokenizerCommand {
 public:
  explicit TokenizeCommand(CLI::App& parent)
      : TokenizerCommand(parent, "tokenize", "Text to token ids", "Text (default: stdin)") {}
  int run() override {
    const Tokenizer tokenizer = load_tokenizer();
    const auto ids = tokenizer.encode(input(), specials_);
    if (!ids) throw FatalError(ExitCode::request_refused, fmt::format("text: {}", ids.error()));
    boost::json::array pieces;
    for (const int32_t id : ids.value()) pieces.emplace_back(tokenizer.decode({&id, 1}, true));
    const std::string text =
        json_ ? boost::json::serialize(boost::json::object{
                    {"schema", 1},
                    {"token_ids", boost::json::array(ids.value().begin(), ids.value().end())},
                    {"tokens", pieces}})
              : fmt::format("{}", fmt::join(ids.value(), " "));
    write_result(text + "\n");
    return static_cast<int>(ExitCode::done);
  }
};

class DetokenizeCommand : public TokenizerCommand {
 public:
  explicit DetokenizeCommand(CLI::App& parent)
      : TokenizerCommand(parent, "detokenize", "Token ids to text",
                         "Ids, separated by spaces or commas (default: stdin)") {}
  int run() override {
    const Tokenizer tokenizer = load_tokenizer();
    const std::vector<int32_t> ids = parse(input(), tokenizer.vocab_size());
    const std::string text = tokenizer.decode(ids, specials_);
    write_result(
        json_ ? boost::json::serialize(boost::json::object{{"schema", 1}, {"text", text}}) + "\n"
              : text);
    return static_cast<int>(ExitCode::done);
  }

 private:
  static std::vector<int32_t> parse(const std::string& text, int vocab_size) {
    constexpr const char* kSeparators = " ,\t\r\n";
    std::vector<int32_t> ids;
    for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string::npos;) {
      const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
      int32_t id = 0;
      const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
      if (error != std::errc() || stop != text.data() + end || id < 0 || id >= vocab_size) {
        throw FatalError(ExitCode::request_refused,
                         fmt::format("'{}' is no token id between 0 and {}",
                                     text.substr(begin, end - begin), vocab_size - 1));
      }
      ids.push_back(id);
      begin = text.find_first_not_of(kSeparators, end);
    }
    return ids;
  }
};

}  // namespace

std::unique_ptr<Command> add_tokenize_command(CLI::App& app) {
  return std::make_unique<TokenizeCommand>(app);
}
std::unique_ptr<Command> add_detokenize_command(CLI::App& app) {
  return std::make_unique<DetokenizeCommand>(app);
}

}  // namespace convoy
