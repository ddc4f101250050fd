#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "base/exit_code.h"
#include "coordinator/bench/bench_report.h"
#include "coordinator/bench/bench_runner.h"
#include "coordinator/bench/measured_speeds.h"
#include "coordinator/cli/commands.h"
#include "coordinator/console/output.h"
#include "coordinator/console/result_file.h"
#include "kernels/ops/step.h"

namespace convoy {
namespace {

constexpr int kMostTokens = 1 << 24;

struct BenchFlags {
  EngineFlags engine;
  BenchOptions bench{.prompt_lengths = {512}, .decode_lengths = {64}};
  std::string json;
  std::string csv;
  std::string svg;
  bool quiet = false;
};

// "cpu;cpu,cpu": one device list each.
std::vector<std::string> split_sets(const std::string& text) {
  std::vector<std::string> sets;
  std::istringstream in(text);
  for (std::string set; std::getline(in, set, ';');) sets.push_back(set);
  if (sets.empty()) sets.emplace_back();  // refused where device lists are read
  return sets;
}

// A file and what is written there.
struct Report {
  ResultFile file;
  std::string (*text_of)(const BenchResult&);
};

std::string ids_of(const std::vector<DeviceSpec>& devices) {
  std::string ids;
  for (const DeviceSpec& device : devices) ids += (ids.empty() ? "" : ",") + device.id;
  return ids;
}

class BenchCommand : public Command {
 public:
  explicit BenchCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "bench", "Time prompts and decode steps, on one or several device sets; table to stdout");
    app->add_option("--prompt-lengths", flags_.bench.prompt_lengths,
                    "Tokens of the prompts, e.g. 512,4096; random ids, the same in every run")
        ->delimiter(',')
        ->check(CLI::Range(1, kMostTokens))
        ->capture_default_str();
    app->add_option("--decode-lengths", flags_.bench.decode_lengths,
                    "Tokens to decode after each prompt, e.g. 128; 0: only the prompt")
        ->delimiter(',')
        ->check(CLI::Range(0, kMostTokens))
        ->capture_default_str();
    app->add_option("--lanes", flags_.bench.lanes,
                    "Sequences that decode at the same time, e.g. 1,16")
        ->delimiter(',')
        ->check(CLI::Range(1, kMaxLanes))
        ->capture_default_str();
    app->add_option("--warm-up", flags_.bench.warm_up, "Rounds before those that count")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str();
    app->add_flag("--sampled", flags_.bench.sampled,
                  "Draw tokens (temperature 0.8, top-k 20, top-p 0.95) instead of taking the "
                  "likeliest");
    app->add_option("--repetitions", flags_.bench.repetitions, "Rounds that count")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app->add_option("--json", flags_.json, "Write one JSON object to a file, - for stdout");
    app->add_option("--csv", flags_.csv, "Write a line per case to a file, - for stdout");
    app->add_option("--svg", flags_.svg, "Draw the speeds into a file, - for stdout");
    app->add_flag("--quiet", flags_.quiet, "No progress and no table");
    add_plan_options(*app, twins, flags_.engine);
    add_run_options(*app, twins, flags_.engine);
    CLI::Option* const devices = app->get_option("--devices");
    devices->join(';');
    devices->description(devices->get_description() +
                         "; several sets to compare: give it again, or ; between them");
  }

  bool json() const override { return is_stdout(flags_.json); }

  int run() override {
    check_outputs_differ();
    const std::vector<RunOptions> runs = options_of_sets();
    const RunOptions& first = runs.front();
    const Checkpoint checkpoint = Checkpoint::open(first.model_directory, first.load_format);
    std::vector<Report> reports = open_reports();  // before anything is measured
    // Every set is planned before the first one loads.
    for (const RunOptions& options : runs) check_plan(plan_run(checkpoint.config(), options));

    BenchResult result{.model = first.model_directory.native(),
                       .dummy = first.load_format == LoadFormat::dummy,
                       .prefill_chunk_tokens = first.prefill_chunk_tokens,
                       .warm_up = flags_.bench.warm_up,
                       .repetitions = flags_.bench.repetitions,
                       .sampled = flags_.bench.sampled,
                       .sets = {},
                       .devices = {}};
    ProgressDisplay display(flags_.quiet ? ProgressDisplay::Mode::silent
                                         : ProgressDisplay::Mode::automatic);
    // First: a card that takes one process only is free now.
    measure_devices(runs, result);
    const std::vector<std::string> given = split_sets(flags_.engine.devices);
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string name = given[i] == "auto" ? ids_of(runs[i].devices) : given[i];
      if (!flags_.quiet) write_stderr(name + "\n");
      result.sets.push_back(run_bench(runs[i], checkpoint, flags_.bench, display));
      result.sets.back().devices = name;
    }
    for (Report& report : reports) report.file.write(report.text_of(result));
    if (!flags_.quiet && !stdout_taken()) write_result(bench_table(result));
    return static_cast<int>(ExitCode::done);
  }

 private:
  std::vector<RunOptions> options_of_sets() const {
    check_longest(read_model_config(resolve_model(flags_.engine.model)));
    std::vector<RunOptions> runs;
    for (const std::string& set : split_sets(flags_.engine.devices)) {
      EngineFlags engine = flags_.engine;
      engine.devices = set;
      if (engine.max_context == 0) {
        engine.max_context = longest();
        engine.max_context_name = "--prompt-lengths plus --decode-lengths";
      }
      engine.lanes = *std::max_element(flags_.bench.lanes.begin(), flags_.bench.lanes.end());
      runs.push_back(resolve(engine, twins));
    }
    // A split counts for the sets with as many stages, if there is one.
    const auto matches = [](const RunOptions& run) {
      return run.stage_layers.size() == run.devices.size();
    };
    if (std::any_of(runs.begin(), runs.end(), matches)) {
      for (RunOptions& run : runs) {
        if (!matches(run)) run.stage_layers.clear();
      }
    }
    return runs;
  }

  static int most(const std::vector<int>& lengths) {
    return *std::max_element(lengths.begin(), lengths.end());
  }
  int longest() const {
    return most(flags_.bench.prompt_lengths) + most(flags_.bench.decode_lengths);
  }

  void check_longest(const ModelConfig& config) const {
    if (longest() <= config.max_position_embeddings) return;
    throw UsageError(fmt::format(
        "--prompt-lengths {} and --decode-lengths {}: together more than the model's {} positions",
        most(flags_.bench.prompt_lengths), most(flags_.bench.decode_lengths),
        config.max_position_embeddings));
  }

  void check_plan(const StagePlan& plan) const {
    if (longest() <= plan.limits.max_context_tokens) return;
    throw UsageError(
        fmt::format("{} {} is less than the longest prompt and what is decoded after it, {} tokens",
                    twins.source_of("--max-context"), plan.limits.max_context_tokens, longest()));
  }

  std::vector<std::pair<std::string, std::string>> outputs() const {
    return {{"--json", flags_.json}, {"--csv", flags_.csv}, {"--svg", flags_.svg}};
  }

  // Only the last of two reports would be left, or both be mixed.
  void check_outputs_differ() const {
    std::map<std::filesystem::path, std::string> flags;
    for (const auto& [flag, path] : outputs()) {
      if (path.empty()) continue;
      const auto file = is_stdout(path)
                            ? std::filesystem::path("-")
                            : std::filesystem::weakly_canonical(std::filesystem::absolute(path));
      const auto [other, first] = flags.emplace(file, flag);
      if (!first)
        throw UsageError(
            fmt::format("{} and {} name the same file: {}", other->second, flag, path));
    }
  }

  bool stdout_taken() const {
    const auto all = outputs();
    return std::any_of(all.begin(), all.end(),
                       [](const auto& output) { return is_stdout(output.second); });
  }

  std::vector<Report> open_reports() const {
    std::vector<Report> reports;
    if (!flags_.csv.empty()) reports.push_back({{"--csv", flags_.csv}, bench_csv});
    if (!flags_.svg.empty()) reports.push_back({{"--svg", flags_.svg}, bench_svg});
    if (!flags_.json.empty()) reports.push_back({{"--json", flags_.json}, bench_json});
    return reports;
  }

  static void measure_devices(const std::vector<RunOptions>& runs, BenchResult& result) {
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
    std::set<std::string> seen;
    for (const RunOptions& options : runs) {
      for (const DeviceSpec& spec : options.devices) {
        if (seen.insert(spec.id).second)
          result.devices.push_back(measure_in_child({spec.id, options.threads}, program));
      }
    }
  }

  BenchFlags flags_;
};

class MeasureDeviceCommand : public Command {
 public:
  explicit MeasureDeviceCommand(CLI::App& parent) {
    app = parent.add_subcommand("measure-device", "What one device does at best")->group("");
    app->add_option("--device", device_.id)->required();
    app->add_option("--threads", device_.threads)->required();
    app->add_option("--parent", parent_pid_)->required();
  }
  int run() override { return run_speed_measurement(device_, parent_pid_); }

 private:
  MeasuredDevice device_;
  int parent_pid_ = 0;
};

}  // namespace

std::unique_ptr<Command> add_measure_device_command(CLI::App& app) {
  return std::make_unique<MeasureDeviceCommand>(app);
}

std::unique_ptr<Command> add_bench_command(CLI::App& app) {
  return std::make_unique<BenchCommand>(app);
}

}  // namespace convoy
