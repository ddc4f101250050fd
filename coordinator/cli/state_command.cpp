#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/exit_code.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/table.h"
#include "kernels/ops/step.h"
#include "shared/state/state_file.h"

namespace convoy {
namespace {

// `convoy state show FILE`: what is in a saved state, every byte of it checked.
class StateCommand : public Command {
 public:
  explicit StateCommand(CLI::App& parent) {
    app = parent.add_subcommand("state", "Look at saved states (generate --save-state)");
    app->require_subcommand(1);
    CLI::App* show = app->add_subcommand("show", "Say what a file holds and check all of it");
    show->add_option("file", file_, "The saved state")->required();
    show->add_flag("--json", json_, "Print one JSON object");
  }

  bool json() const override { return json_; }

  int run() override {
    const StateSummary summary = read_state_summary(file_);
    write_result(json_ ? as_json(summary) : as_text(summary));
    return static_cast<int>(ExitCode::done);
  }

 private:
  static const char* kind_of(const StateHeader& header) {
    return device_kind_name(static_cast<DeviceKind>(header.device_kind));
  }

  static const char* kv_dtype_of(const StateHeader& header) {
    return kv_dtype_name(static_cast<KvDtype>(header.kv_dtype));
  }

  std::string as_text(const StateSummary& summary) const {
    const StateHeader& header = summary.header;
    return fmt::format(
        "{}: a state of {} tokens ({} prompt, {} generated), token {} follows\n"
        "saved on {} devices, KV as {}, {} layers, {}, model {:016x}; every layer's hash is "
        "right\n",
        file_, header.tokens, header.prompt_tokens, header.tokens - header.prompt_tokens,
        summary.ids.back(), kind_of(header), kv_dtype_of(header), header.layers,
        format_bytes(header.file_bytes), header.model);
  }

  std::string as_json(const StateSummary& summary) const {
    namespace json = boost::json;
    const StateHeader& header = summary.header;
    json::array layers;
    for (const StateSection& section : summary.layers)
      layers.push_back({{"offset", section.offset}, {"bytes", section.bytes}});
    return json::serialize(json::object{{"schema", 1},
                                        {"tokens", header.tokens},
                                        {"prompt_tokens", header.prompt_tokens},
                                        {"page_tokens", kPageTokens},
                                        {"devices", kind_of(header)},
                                        {"kv_dtype", kv_dtype_of(header)},
                                        {"model", fmt::format("{:016x}", header.model)},
                                        {"bytes", header.file_bytes},
                                        {"token_ids", json::value_from(summary.ids)},
                                        {"layers", layers}}) +
           "\n";
  }

  std::string file_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> add_state_command(CLI::App& app) {
  return std::make_unique<StateCommand>(app);
}

}  // namespace convoy
