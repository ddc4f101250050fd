#include "coordinator/cli/engine_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>

#include "base/exit_code.h"
#include "base/log.h"
#include "coordinator/bench/measured_speeds.h"
#include "coordinator/run/automatic_devices.h"
#include "coordinator/run/device_memory.h"
#include "kernels/ops/step.h"
#include "shared/control/instance_directory.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr int kMaxChunk = 16384;
constexpr int kMaxThreads = 1024;
constexpr int kMaxContext = 1 << 24;
constexpr int kMaxHeadroomMib = 1 << 24;
constexpr int kMaxImages = 4096;
constexpr double kMaxHostCacheGib = 65536;

// Beside the programs in a build tree or an installation, or in the source tree above.
fs::path bundled_model() {
  const fs::path programs = program_directory();
  for (const fs::path& candidate :
       {programs / "../models/convoy-stories", programs / "../share/convoy/models/convoy-stories",
        programs / "../../../models/convoy-stories"}) {
    if (fs::exists(candidate / "config.json")) return candidate.lexically_normal();
  }
  throw StartError(fmt::format("the bundled model is not beside {}; name a model with --model",
                               programs.native()));
}

LinkWish resolve_link(const std::string& link, DeviceKind kind, const EnvironmentTwins& twins) {
  if (kind == DeviceKind::cpu) {
    if (link == "peer" || link == "local") {
      throw UsageError(
          fmt::format("{} {}: stages on CPU devices hand over in shared memory; allowed are pinned "
                      "and auto",
                      twins.source_of("--link"), link));
    }
    return LinkWish::pinned;
  }
  if (link == "pinned") return LinkWish::pinned;
  return link == "local" ? LinkWish::local : LinkWish::peer;
}

}  // namespace

void EnvironmentTwins::add(CLI::Option* option, const std::string& variable) {
  const std::string name = "CONVOY_" + variable;
  option->description(option->get_description() + " [" + name + "]");
  twins_.emplace_back(option, name);
}

void EnvironmentTwins::apply() {
  for (const auto& [option, name] : twins_) {
    const char* value = std::getenv(name.c_str());
    if (option->count() > 0 || value == nullptr || value[0] == '\0') continue;
    try {
      option->add_result(value);
      option->run_callback();
      applied_.emplace_back(option, name);
    } catch (const CLI::Error& error) {
      throw UsageError(fmt::format("{}='{}': {}", name, value, error.what()));
    }
  }
}

std::string EnvironmentTwins::source_of(const std::string& flag) const {
  for (const auto& [option, name] : applied_) {
    if (option->check_name(flag)) return name;
  }
  return flag;
}

fs::path resolve_model(const std::string& model) {
  return model.empty() ? bundled_model() : fs::path(model);
}

fs::path program_directory() {
  if (const char* directory = std::getenv("CONVOY_BIN_DIR");
      directory != nullptr && directory[0] != '\0')
    return fs::absolute(directory);
  return fs::read_symlink("/proc/self/exe").parent_path();
}

Tokenizer load_tokenizer(const RunOptions& options, std::string_view command) {
  const fs::path file = options.model_directory / "tokenizer.json";
  std::error_code ignored;  // any other trouble is told where the file is read
  if (fs::status(file, ignored).type() == fs::file_type::not_found) {
    throw StartError(
        fmt::format("{}: no such file; convoy {} needs a tokenizer (convoy bench and "
                    "convoy plan work without)",
                    file.native(), command));
  }
  return Tokenizer::load(options.model_directory);
}

CLI::Validator instance_name_check() {
  return {[](std::string& name) -> std::string {
            const Status status = check_instance_name(name);
            return status ? "" : status.error();
          },
          ""};
}

void add_runtime_dir_option(CLI::App& command, EnvironmentTwins& twins, std::string& runtime_dir) {
  twins.add(
      command.add_option(
          "--runtime-dir", runtime_dir,
          "Folder of sockets and logs (default: $XDG_RUNTIME_DIR/convoy or /tmp/convoy-<uid>)"),
      "RUNTIME_DIR");
}

void add_log_level_option(CLI::App& command, EnvironmentTwins& twins, std::string& level) {
  twins.add(command.add_option("--log-level", level, "debug, info, warning, error or off")
                ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
                ->capture_default_str(),
            "LOG_LEVEL");
}

namespace {

void add_memory_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags) {
  twins.add(command
                .add_option("--split-by", flags.split_by,
                            "What is dealt out evenly once the KV memory fits: memory (the share "
                            "of its device that a stage takes), weight (weight bytes), speed "
                            "(weight bytes over --device-speed); auto: weight for CPU stages, "
                            "memory for CUDA stages")
                ->check(CLI::IsMember({"auto", "memory", "weight", "speed"}))
                ->capture_default_str(),
            "SPLIT_BY");
  twins.add(command.add_option(
                "--device-speed", flags.device_speed,
                "For --split-by speed: e.g. 0=3900,1=1200, in any one unit (default: measured)"),
            "DEVICE_SPEED");
  twins.add(command.add_option("--memory-limit", flags.memory_limit,
                               "Most that the run may take on a device, e.g. 0=20GiB,1=8GiB "
                               "(default: what is free)"),
            "MEMORY_LIMIT");
  twins.add(command
                .add_option("--kv-headroom-mib", flags.kv_headroom_mib,
                            fmt::format("MiB of each device's free memory that stay free (default: "
                                        "{} on CUDA devices, 0 on CPU devices)",
                                        kCudaHeadroomBytes >> 20))
                ->check(CLI::Range(0, kMaxHeadroomMib)),
            "KV_HEADROOM_MIB");
  twins.add(command
                .add_option("--kv-capacity", flags.kv_capacity,
                            "Tokens of KV memory for all sequences together; auto: what they can "
                            "use at --max-context, or less where less fits")
                ->capture_default_str(),
            "KV_CAPACITY");
  twins.add(command
                .add_option("--kv-dtype", flags.kv_dtype,
                            "How the cache stores keys and values: f32 or int8 on CPU devices, "
                            "bf16, int8 or fp8 on CUDA devices; auto: f32 or bf16")
                ->check(CLI::IsMember({"auto", "f32", "bf16", "int8", "fp8"}))
                ->capture_default_str(),
            "KV_DTYPE");
}

void add_prefix_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags) {
  twins.add(command
                .add_option("--prefix-cache", flags.prefix_cache,
                            "What later prompts need not compute again: exact (what earlier "
                            "prompts did; no bit of an answer changes), fast (what answers did, "
                            "too; bits may differ), off; auto: exact where a run has several "
                            "prompts")
                ->check(CLI::IsMember({"auto", "exact", "fast", "off"}))
                ->capture_default_str(),
            "PREFIX_CACHE");
  twins.add(command
                .add_option("--prefix-images", flags.prefix_images,
                            "Prefixes that the cache holds at most; each takes the recurrent "
                            "state of all layers (convoy plan says how much)")
                ->check(CLI::Range(1, kMaxImages))
                ->capture_default_str(),
            "PREFIX_IMAGES");
  twins.add(command
                .add_option("--host-cache-gib", flags.host_cache_gib,
                            "Host memory for prefixes that the devices have no room for, of all "
                            "stages together")
                ->check(CLI::Range(0.0, kMaxHostCacheGib))
                ->capture_default_str(),
            "HOST_CACHE_GIB");
}

int resolve_kv_capacity(const std::string& text, const EnvironmentTwins& twins) {
  if (text == "auto") return 0;
  int tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  if (error != std::errc() || end != text.data() + text.size() || tokens < 1 ||
      tokens > kMaxContext) {
    throw UsageError(fmt::format("{} '{}': allowed are auto and 1 to {} tokens",
                                 twins.source_of("--kv-capacity"), text, kMaxContext));
  }
  return tokens;
}

std::optional<KvDtype> parse_kv_dtype(const std::string& text) {
  for (uint32_t number = 0; number < kKvDtypes; ++number) {
    const auto dtype = static_cast<KvDtype>(number);
    if (text == kv_dtype_name(dtype)) return dtype;
  }
  return std::nullopt;  // auto
}

void check_kv_dtype(const RunOptions& options, const EnvironmentTwins& twins) {
  const DeviceKind kind = options.devices.front().kind;
  if (!options.kv_dtype || has_kv_dtype(kind, *options.kv_dtype)) return;
  throw UsageError(
      fmt::format("{} {}: allowed for {} devices are {}", twins.source_of("--kv-dtype"),
                  kv_dtype_name(*options.kv_dtype), kind == DeviceKind::cpu ? "CPU" : "CUDA",
                  kind == DeviceKind::cpu ? "auto, f32 and int8" : "auto, bf16, int8 and fp8"));
}

void resolve_memory(const EngineFlags& flags, const EnvironmentTwins& twins, RunOptions& options) {
  if (flags.split_by == "memory") options.split_by = SplitBy::memory;
  if (flags.split_by == "weight") options.split_by = SplitBy::weight;
  if (flags.split_by == "speed") options.split_by = SplitBy::speed;
  if (!flags.memory_limit.empty())
    options.memory_limits =
        parse_memory_limits(flags.memory_limit, twins.source_of("--memory-limit"));
  if (!flags.device_speed.empty()) {
    options.device_speeds =
        parse_device_speeds(flags.device_speed, twins.source_of("--device-speed"));
    if (flags.split_by != "speed") {
      throw UsageError(
          fmt::format("{} counts with --split-by speed only", twins.source_of("--device-speed")));
    }
  }
  if (flags.kv_headroom_mib >= 0)
    options.kv_headroom_bytes = static_cast<uint64_t>(flags.kv_headroom_mib) << 20;
  options.kv_capacity_tokens = resolve_kv_capacity(flags.kv_capacity, twins);
  options.kv_dtype = parse_kv_dtype(flags.kv_dtype);
}

// Where a person did not choose: prompts of one run may begin alike, or there is only one.
void resolve_prefix_cache(const EngineFlags& flags, RunOptions& options) {
  const bool is_exact =
      flags.prefix_cache == "exact" || (flags.prefix_cache == "auto" && flags.several_prompts);
  if (is_exact) options.prefix_cache = PrefixCacheMode::exact;
  if (flags.prefix_cache == "fast") options.prefix_cache = PrefixCacheMode::fast;
  options.prefix_images = flags.prefix_images;
  options.host_cache_bytes = static_cast<uint64_t>(flags.host_cache_gib * double{1 << 30});
}

}  // namespace

void add_plan_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags) {
  twins.add(command.add_option("-m,--model", flags.model,
                               "Hugging Face model directory (default: the bundled model)"),
            "MODEL");
  twins.add(command
                .add_option("--load-format", flags.load_format,
                            "auto: the weights of the model directory; dummy: random weights in "
                            "the shapes of its config.json, for timing")
                ->check(CLI::IsMember({"auto", "dummy"}))
                ->capture_default_str(),
            "LOAD_FORMAT");
  twins.add(command
                .add_option("--devices", flags.devices,
                            "One stage per entry: cpu, or CUDA devices as 0, cuda:0, GPU-<uuid>, "
                            "PCI id; ids may repeat; auto: the fewest GPUs that hold model and "
                            "context, or cpu")
                ->capture_default_str(),
            "DEVICES");
  twins.add(command.add_flag("--allow-mixed-arch", flags.allow_mixed_architectures,
                             "Run on CUDA devices of different architectures, though the text then "
                             "depends on the split"),
            "ALLOW_MIXED_ARCH");
  twins.add(command.add_option("--stage-layers", flags.stage_layers,
                               "Layers of each stage, e.g. 5,4,3 (default: what --split-by says)"),
            "STAGE_LAYERS");
  add_memory_options(command, twins, flags);
  add_prefix_options(command, twins, flags);
  twins.add(command
                .add_option("-c,--max-context", flags.max_context,
                            fmt::format("Tokens of prompt and answer together; the last of the "
                                        "answer takes no room (default: the model's, at most {})",
                                        kDefaultContextTokens))
                ->check(CLI::Range(1, kMaxContext)),
            "MAX_CONTEXT");
  twins.add(command
                .add_option("--prefill-chunk", flags.prefill_chunk,
                            "Prompt tokens that go through a stage at once, a multiple of 64")
                ->check(CLI::Range(kPageTokens, kMaxChunk))
                ->capture_default_str(),
            "PREFILL_CHUNK");
  twins.add(command
                .add_option("--link", flags.link,
                            "Where CUDA stages hand over: pinned host memory; peer: the receiver's "
                            "memory wherever that works; local: only between stages on one card; "
                            "auto: as peer, without warnings")
                ->check(CLI::IsMember({"pinned", "peer", "local", "auto"}))
                ->capture_default_str(),
            "LINK");
}

void add_doorbell_option(CLI::App& command, EnvironmentTwins& twins, std::string& doorbell) {
  twins.add(command
                .add_option("--doorbell", doorbell,
                            "How a stage learns of a transfer: memops or events (CUDA devices), "
                            "host (CPU devices); auto: memops or host")
                ->check(CLI::IsMember({"auto", "memops", "events", "host"}))
                ->capture_default_str(),
            "DOORBELL");
}

LinkDoorbell resolve_doorbell(const std::string& doorbell, DeviceKind kind,
                              const EnvironmentTwins& twins) {
  if (doorbell != "auto" && (doorbell == "host") != (kind == DeviceKind::cpu)) {
    throw UsageError(
        fmt::format("{} {}: allowed for {} devices are {}", twins.source_of("--doorbell"), doorbell,
                    kind == DeviceKind::cpu ? "CPU" : "CUDA",
                    kind == DeviceKind::cpu ? "auto and host" : "auto, memops and events"));
  }
  return doorbell == "events" ? LinkDoorbell::events : LinkDoorbell::words;
}

void add_run_options(CLI::App& command, EnvironmentTwins& twins, EngineFlags& flags) {
  twins.add(command
                .add_option("-t,--threads", flags.threads,
                            "Threads of each CPU stage (default: physical cores)")
                ->check(CLI::Range(1, kMaxThreads)),
            "THREADS");
  twins.add(
      command.add_flag("--no-cuda-graph", flags.no_cuda_graph,
                       "CUDA stages launch every kernel by itself instead of replaying graphs"),
      "NO_CUDA_GRAPH");
  add_doorbell_option(command, twins, flags.doorbell);
  twins.add(command
                .add_option("--attach", flags.attach,
                            "Use the waiting workers of this pool (convoy up) for the stages after "
                            "the first")
                ->check(instance_name_check()),
            "ATTACH");
  twins.add(command
                .add_option("--instance", flags.instance,
                            "Name of this run for convoy health (default: run-<pid>)")
                ->check(instance_name_check()),
            "INSTANCE");
  add_runtime_dir_option(command, twins, flags.runtime_dir);
  add_log_level_option(command, twins, flags.log_level);
}

RunOptions resolve(const EngineFlags& flags, const EnvironmentTwins& twins) {
  RunOptions options;
  LogLevel level = LogLevel::warning;
  parse_log_level(flags.log_level, level);
  set_log_level(level);
  if (flags.prefill_chunk % kPageTokens != 0) {
    throw UsageError(fmt::format("{} {} is not a multiple of {}",
                                 twins.source_of("--prefill-chunk"), flags.prefill_chunk,
                                 kPageTokens));
  }
  options.names = {.devices = twins.source_of("--devices"),
                   .stage_layers = twins.source_of("--stage-layers"),
                   .max_context = twins.source_of(flags.max_context_name),
                   .kv_capacity = twins.source_of("--kv-capacity"),
                   .device_speed = twins.source_of("--device-speed"),
                   .host_cache = twins.source_of("--host-cache-gib")};
  options.model_directory = resolve_model(flags.model);
  options.load_format = flags.load_format == "dummy" ? LoadFormat::dummy : LoadFormat::automatic;
  if (flags.devices != "auto")
    options.devices = parse_devices(flags.devices, twins.source_of("--devices"));
  options.allow_mixed_architectures = flags.allow_mixed_architectures;
  if (!flags.stage_layers.empty())
    options.stage_layers =
        parse_stage_layers(flags.stage_layers, twins.source_of("--stage-layers"));
  resolve_memory(flags, twins, options);
  resolve_prefix_cache(flags, options);
  options.max_context_tokens = flags.max_context;
  options.prefill_chunk_tokens = flags.prefill_chunk;
  options.attach = flags.attach;
  options.lanes = flags.lanes;
  if (options.devices.empty()) options.devices = automatic_devices(options);
  if (options.split_by == SplitBy::speed && flags.device_speed.empty())
    options.device_speeds = measure_speeds(options.devices, fs::read_symlink("/proc/self/exe"));
  options.threads = flags.threads;
  options.cuda_graphs = !flags.no_cuda_graph;
  check_kv_dtype(options, twins);
  const DeviceKind kind = options.devices.front().kind;
  options.links.doorbell = resolve_doorbell(flags.doorbell, kind, twins);
  options.links.wish = resolve_link(flags.link, kind, twins);
  options.warn_of_fallback = flags.link != "auto";
  options.instance = flags.instance;
  options.runtime_root = runtime_root(flags.runtime_dir);
  options.worker_program = program_directory() / "convoy-stage-worker";
  options.log_level = flags.log_level;
  if (const char* hold = std::getenv("CONVOY_TEST_HOLD")) options.test_hold = hold;
  options.test_run_ahead = std::getenv("CONVOY_TEST_RUN_AHEAD") != nullptr;
  return options;
}

}  // namespace convoy
