// Options that every command with a model shares, and their CONVOY_ twins in the environment.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/run/engine_run.h"
#include "coordinator/text/tokenizer.h"

namespace convoy {

/// Options with an environment twin. A flag wins over its twin, a set and non-empty twin over the
/// default.
class EnvironmentTwins {
 public:
  /// `variable` without the CONVOY_ prefix.
  void add(CLI::Option* option, const std::string& variable);
  /// After parsing: gives every option that was not on the command line its twin's value. Throws
  /// UsageError that names the variable.
  void apply();
  /// What to call `flag` ("--devices") in an error: the variable where its value came from there.
  std::string source_of(const std::string& flag) const;

 private:
  std::vector<std::pair<CLI::Option*, std::string>> twins_;
  std::vector<std::pair<CLI::Option*, std::string>> applied_;
};

/// As typed; resolve() checks.
struct EngineFlags {
  std::string model;
  std::string load_format = "auto";
  std::string devices = "auto";
  bool allow_mixed_architectures = false;
  std::string stage_layers;
  std::string split_by = "auto";
  std::string memory_limit;
  std::string device_speed;
  int kv_headroom_mib = -1;  ///< -1: the default of the devices' kind
  std::string kv_capacity = "auto";
  std::string prefix_cache = "auto";
  int prefix_images = 8;
  double host_cache_gib = 0;
  std::string kv_dtype = "auto";
  /// Not typed as such: what the command knows of its prompts before any is read.
  int lanes = 1;
  bool several_prompts = false;
  /// What made max_context, for errors: a command may set both where --max-context is not given.
  std::string max_context_name = "--max-context";
  int max_context = 0;
  int prefill_chunk = 512;
  int threads = 0;
  bool no_cuda_graph = false;
  std::string link = "pinned";
  std::string doorbell = "auto";
  std::string attach;
  std::string instance;
  std::string runtime_dir;
  std::string log_level = "warning";
};

/// For options that name an instance.
CLI::Validator instance_name_check();

void add_runtime_dir_option(CLI::App& command, EnvironmentTwins& twins, std::string& runtime_dir);
void add_log_level_option(CLI::App& command, EnvironmentTwins& twins, std::string& level);
/// -m, --load-format, --devices, -c, --prefill-chunk, --link, and how layers and memory are dealt
/// out: what the plan depends on.
void add_plan_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags);
/// -t, --doorbell, --attach, --instance, --runtime-dir, --log-level: what running depends
/// on.
void add_run_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags);

void add_doorbell_option(CLI::App& command, EnvironmentTwins& twins, std::string& doorbell);
/// Throws UsageError for a doorbell that devices of this kind do not have.
LinkDoorbell resolve_doorbell(const std::string& doorbell, DeviceKind kind,
                              const EnvironmentTwins& twins);

/// Throws UsageError or StartError naming the flag or the variable. Sets the log level.
RunOptions resolve(const EngineFlags& flags, const EnvironmentTwins& twins);

/// `model`, or the bundled model where it is empty. Throws StartError.
std::filesystem::path resolve_model(const std::string& model);

/// Throws StartError; where the model directory has no tokenizer it names `command`, which needs
/// one.
Tokenizer load_tokenizer(const RunOptions& options, std::string_view command);

/// The folder of the program that runs, with the worker beside it; or $CONVOY_BIN_DIR.
std::filesystem::path program_directory();

}  // namespace convoy
