#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/table.h"

namespace convoy {
namespace {

std::string plan_table(const StagePlan& plan) {
  std::vector<std::vector<std::string>> rows{
      {"stage", "device", "layers", "weights", "kv", "state", "workspace", "link", "total"}};
  for (const StageAssignment& s : plan.stages) {
    rows.push_back({std::to_string(s.rank.value), s.device.id,
                    fmt::format("{}-{}", s.layers.begin, s.layers.end - 1),
                    format_bytes(s.memory.weight_bytes), format_bytes(s.memory.kv_bytes),
                    format_bytes(s.memory.state_bytes), format_bytes(s.memory.workspace_bytes),
                    format_bytes(s.memory.link_bytes), format_bytes(s.memory.total())});
  }
  return format_table(rows, {1, 2}) +
         fmt::format("context {} tokens in {} page groups of {}; prefill chunk {}\n",
                     plan.limits.max_context_tokens, plan.limits.page_groups, kPageTokens,
                     plan.limits.prefill_chunk_tokens);
}

std::string plan_json(const StagePlan& plan) {
  namespace json = boost::json;
  json::array stages;
  for (const StageAssignment& s : plan.stages) {
    stages.push_back({{"rank", s.rank.value},
                      {"device", s.device.id},
                      {"layers", {s.layers.begin, s.layers.end}},
                      {"weight_bytes", s.memory.weight_bytes},
                      {"kv_bytes", s.memory.kv_bytes},
                      {"state_bytes", s.memory.state_bytes},
                      {"workspace_bytes", s.memory.workspace_bytes},
                      {"link_bytes", s.memory.link_bytes},
                      {"runtime_bytes", s.memory.runtime_bytes},
                      {"total_bytes", s.memory.total()}});
  }
  return json::serialize(json::object{{"schema", 1},
                                      {"max_context", plan.limits.max_context_tokens},
                                      {"page_tokens", kPageTokens},
                                      {"page_groups", plan.limits.page_groups},
                                      {"prefill_chunk", plan.limits.prefill_chunk_tokens},
                                      {"stages", stages}}) +
         "\n";
}

class PlanCommand : public Command {
 public:
  explicit PlanCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "plan", "Show which stage owns which layers and what it takes; loads nothing");
    add_plan_options(*app, twins, flags_);
    twins.add(app->add_option("--attach", flags_.attach,
                              "Plan for the stages of this pool after the first"),
              "ATTACH");
    add_runtime_dir_option(*app, twins, flags_.runtime_dir);
    app->add_flag("--json", json_, "Print one JSON object");
  }
  bool json() const override { return json_; }
  int run() override {
    const RunOptions options = resolve(flags_, twins);
    const Checkpoint checkpoint = Checkpoint::open(options.model_directory, options.load_format);
    const StagePlan plan = plan_run(checkpoint.config(), options);
    [[maybe_unused]] const WriteResult written =
        write_stdout(json_ ? plan_json(plan) : plan_table(plan));
    return static_cast<int>(ExitCode::done);
  }

 private:
  EngineFlags flags_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> add_plan_command(CLI::App& app) {
  return std::make_unique<PlanCommand>(app);
}

}  // namespace convoy
