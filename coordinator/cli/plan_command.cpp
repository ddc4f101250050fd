// `convoy plan`: bytes by stage and kind, and the verdict.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/table.h"

namespace convoy {
namespace {

// The verdict: what the plan says before anything is loaded.
struct Verdict {
  std::string refusal;  // empty: it fits
  int largest_context_tokens = 0;
};

std::string device_lines(const StagePlan& plan) {
  std::string lines;
  for (const DeviceNeed& device : plan.devices) {
    lines += fmt::format("{}: {} of {}\n", device.memory.device,
                         format_bytes(device.need.bytes_at(plan.limits.page_groups)),
                         device.memory.available_bytes
                             ? format_bytes(*device.memory.available_bytes) + " available"
                             : "an unknown size");
  }
  return lines;
}

// What the prefix cache has on the devices, out of "state", and in host memory.
std::string prefix_line(const ModelConfig& config, const StageLimits& limits) {
  if (limits.image_slots == 0) return "";
  const LayerRange all{0, config.num_layers};
  const uint64_t image = state_image_bytes(config, all);
  const uint64_t page_group = page_group_bytes(config, all, limits.kv_dtype);
  std::string line =
      fmt::format("prefix cache: {} images of {}", limits.image_slots, format_bytes(image));
  if (limits.host_slots > 0) {
    line += fmt::format("; in host memory {} more and {} page groups of {}", limits.host_slots,
                        limits.host_pages, format_bytes(page_group));
  }
  return line + "\n";
}

std::string plan_table(const ModelConfig& config, const StagePlan& plan, const Verdict& verdict) {
  std::vector<std::vector<std::string>> rows{{"stage", "device", "layers", "weights", "kv", "state",
                                              "workspace", "link", "runtime", "total"}};
  for (const StageAssignment& s : plan.stages) {
    rows.push_back({std::to_string(s.rank.value), s.device.id,
                    fmt::format("{}-{}", s.layers.begin, s.layers.end - 1),
                    format_bytes(s.memory.weight_bytes), format_bytes(s.memory.kv_bytes),
                    format_bytes(s.memory.state_bytes), format_bytes(s.memory.workspace_bytes),
                    format_bytes(s.memory.link_bytes), format_bytes(s.memory.runtime_bytes),
                    format_bytes(s.memory.total())});
  }
  return format_table(rows, {1, 2}) +
         fmt::format("context {} tokens in {} page groups of {}, KV as {}; prefill chunk {}\n",
                     plan.limits.max_context_tokens, plan.limits.page_groups, kPageTokens,
                     kv_dtype_name(plan.limits.kv_dtype), plan.limits.prefill_chunk_tokens) +
         prefix_line(config, plan.limits) + device_lines(plan) +
         (verdict.refusal.empty()
              ? fmt::format("fits; the largest context that fits is {} tokens\n",
                            verdict.largest_context_tokens)
              : fmt::format("does not fit: {}\n", verdict.refusal));
}

std::string plan_json(const StagePlan& plan, const Verdict& verdict) {
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
                      {"total_bytes", s.memory.total()},
                      {"bytes_per_page_group", s.capacity.bytes_per_page}});
  }
  json::array devices;
  for (const DeviceNeed& d : plan.devices) {
    devices.push_back(
        {{"device", d.memory.device},
         {"least_page_groups", d.need.pages_min},
         {"needed_bytes", d.need.bytes_min},
         {"available_bytes", d.memory.available_bytes ? json::value(*d.memory.available_bytes)
                                                      : json::value(nullptr)}});
  }
  return json::serialize(
             json::object{{"schema", 1},
                          {"fits", verdict.refusal.empty()},
                          {"refusal", verdict.refusal.empty() ? json::value(nullptr)
                                                              : json::value(verdict.refusal)},
                          {"largest_context", verdict.largest_context_tokens},
                          {"max_context", plan.limits.max_context_tokens},
                          {"parallel", plan.limits.lanes},
                          {"page_tokens", kPageTokens},
                          {"page_groups", plan.limits.page_groups},
                          {"kv_dtype", kv_dtype_name(plan.limits.kv_dtype)},
                          {"prefix_images", plan.limits.image_slots},
                          {"host_images", plan.limits.host_slots},
                          {"host_page_groups", plan.limits.host_pages},
                          {"prefill_chunk", plan.limits.prefill_chunk_tokens},
                          {"stages", stages},
                          {"devices", devices}}) +
         "\n";
}

class PlanCommand : public Command {
 public:
  explicit PlanCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "plan",
        "Show which stage owns which layers, what it takes and whether it fits; loads nothing");
    add_plan_options(*app, twins, flags_);
    twins.add(app->add_option("--attach", flags_.attach,
                              "Plan for the stages of this pool after the first"),
              "ATTACH");
    twins.add(app->add_option("--parallel", flags_.lanes,
                              "Sequences at a time, as for generate --parallel")
                  ->check(CLI::Range(1, kMaxLanes))
                  ->capture_default_str(),
              "PARALLEL");
    add_runtime_dir_option(*app, twins, flags_.runtime_dir);
    app->add_flag("--json", json_, "Print one JSON object");
  }
  bool json() const override { return json_; }
  int run() override {
    flags_.several_prompts = flags_.lanes > 1;
    const RunOptions options = resolve(flags_, twins);
    const Checkpoint checkpoint = Checkpoint::open(options.model_directory, options.load_format);
    const ModelConfig& config = checkpoint.config();
    const PlanRequest request = plan_request(config, options);
    const StagePlan plan = make_stage_plan(config, request);
    const Verdict verdict{plan.fits() ? "" : plan_refusal(config, request, plan),
                          largest_context_tokens(config, request)};
    write_result(json_ ? plan_json(plan, verdict) : plan_table(config, plan, verdict));
    return static_cast<int>(plan.fits() ? ExitCode::done : ExitCode::start_failed);
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
