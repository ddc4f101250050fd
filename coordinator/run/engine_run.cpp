#include "coordinator/run/engine_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "base/exit_code.h"
#include "base/log.h"
#include "coordinator/run/device_memory.h"
#include "shared/plan/mixed_architectures.h"
#include "shared/stage/open_device.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kHealthTimeoutMs = 1000;
constexpr int kSpinIterations = 2000;
// The engine's error comes from released waits; why they were released is known a moment earlier or
// later.
constexpr auto kFailureGrace = std::chrono::milliseconds(1000);

// Where stages outnumber cores, a spinning process takes the core that the stage it waits for
// needs.
int spin_iterations(size_t stages) {
  return stages <= static_cast<size_t>(physical_cores()) ? kSpinIterations : 0;
}

uint64_t stored_bytes(const Checkpoint& checkpoint, LayerRange layers, bool with_root) {
  uint64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    bytes += checkpoint.layer_bytes(layer);
  if (with_root)
    bytes += checkpoint.embedding_bytes() + checkpoint.final_norm_bytes() + checkpoint.head_bytes();
  return bytes;
}

}  // namespace

EngineRun::EngineRun(const RunOptions& options, StagePlan plan, const Checkpoint& checkpoint,
                     int token_ids, ProgressDisplay& display)
    : plan_(std::move(plan)),
      instance_(InstanceDirectory::create(options.runtime_root, options.instance)),
      attached_(!options.attach.empty()),
      hold_(options.test_hold) {
  const auto begin = Clock::now();
  describe(checkpoint.config());
  health_server_ = std::make_unique<HealthServer>(health_socket_path(instance_.path(), 0), health_);
  pool_ = std::make_unique<WorkerPool>();
  start_workers(options);
  load(options, checkpoint, token_ids, display);
  connect(checkpoint.config(), options);
  open_admission(checkpoint.config(), options.prefix_cache);
  health_.set_state(proto::StageHealth::READY);
  load_seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  serving_.emplace();
}

EngineRun::~EngineRun() {
  health_.set_state(proto::StageHealth::STOPPING);
  if (pool_) pool_->set_release_hook({});
  // After an error the engine's stream may wait for a peer that is about to end.
  if (pipeline_) pipeline_->release_waiters();
  pool_.reset();
}

void EngineRun::start_workers(const RunOptions& options) {
  if (attached_) {
    pool_->attach(pool_directory(options), plan_);
  } else {
    pool_->spawn(options.worker_program, instance_.path(), plan_);
  }
  publish_members();
  if (plan_.stages.size() > 1) {
    pool_->begin_load(plan_, {.model_directory = std::filesystem::absolute(options.model_directory),
                              .load_format = options.load_format,
                              .threads = options.threads,
                              .cuda_graphs = options.cuda_graphs,
                              .log_level = options.log_level,
                              .test_hold = options.test_hold});
  }
  publish_members();
}

void EngineRun::publish_members() const {
  InstanceInfo info{.name = instance_.name(), .kind = "run", .members = {}};
  const auto status = pool_->status();
  for (const StageAssignment& stage : plan_.stages) {
    const int rank = stage.rank.value;
    info.members.push_back(
        {.rank = rank,
         .pid = rank == 0 ? ::getpid() : status[static_cast<size_t>(rank - 1)].pid,
         .role = rank == 0 ? "coordinator" : "stage_worker",
         .device = stage.device.id,
         .uuid = stage.device.uuid,
         .layer_begin = stage.layers.begin,
         .layer_end = stage.layers.end});
  }
  // The workers of a pool answer in the pool's own folder.
  if (attached_) info.members.resize(1);
  instance_.publish(info);
}

void EngineRun::load(const RunOptions& options, const Checkpoint& checkpoint, int token_ids,
                     ProgressDisplay& display) {
  health_.set_state(proto::StageHealth::LOADING);
  const DeviceSpec& named = plan_.stages.front().device;
  device_ = open_device(named.id, options.threads, named.uuid);
  const uint64_t total = stored_bytes(checkpoint, plan_.stages.front().layers, true);
  uint64_t loaded = 0;
  const auto show = [&] {
    std::vector<LoadState> states{{loaded, total}};
    for (const WorkerStatus& s : pool_->status()) states.push_back({s.loaded_bytes, s.total_bytes});
    display.update(states);
  };
  const auto progress = [&](uint64_t bytes) {
    hold_.reach(0, HoldPhase::load, health_,
                [this] { return pool_->cancelled() != 0 || pool_->failure(); });
    pool_->check();
    loaded += bytes;
    health_.set_load_progress(loaded, total);
    show();
  };
  engine_ = std::make_unique<Engine>(
      Engine::Parts{.device = *device_,
                    .checkpoint = checkpoint,
                    .plan = plan_,
                    .health = health_,
                    .hold = hold_,
                    .valid_vocab = std::min(token_ids, checkpoint.config().vocab_size),
                    .run_ahead = options.test_run_ahead},
      progress);
  engine_->set_cancelled(
      [this] { return pool_->cancelled() != 0 || pool_->failure().has_value(); });
  engine_->prepare(options.cuda_graphs);
  pool_->wait_loaded(show);
  show();
  display.finish();
  if (!options.allow_mixed_architectures) confirm_architectures();
  confirm_memory(options);
}

// The plan compared the cards that this process sees; a pool may be on others.
void EngineRun::confirm_architectures() const {
  const DeviceInfo info = device_->info();
  if (info.kind == DeviceKind::cpu) return;
  std::vector<ListedDevice> devices{{info.id, info.name, info.uuid, info.architecture}};
  for (const WorkerStatus& s : pool_->status()) {
    const proto::DeviceReport& device = s.loaded->device();
    devices.push_back({device.id(), device.name(), device.uuid(), device.architecture()});
  }
  refuse_mixed_architectures(devices, attached_ ? "--attach" : "--devices");
}

// The plan's arithmetic said that everything fits, with something left.
void EngineRun::confirm_memory(const RunOptions& options) {
  const DeviceInfo info = device_->info();
  health_.set_free_bytes(info.free_bytes);
  if (info.kind == DeviceKind::cpu) return;
  const uint64_t headroom = options.kv_headroom_bytes.value_or(kCudaHeadroomBytes);
  const auto confirm = [&](int rank, const std::string& name, uint64_t free_bytes) {
    const bool as_planned = free_bytes >= headroom;
    log(as_planned ? LogLevel::info : LogLevel::warning,
        fmt::format("stage {}: {} has {} bytes free after loading{}", rank, name, free_bytes,
                    as_planned ? "" : fmt::format(", {} were to stay free", headroom)));
  };
  confirm(0, info.id, info.free_bytes);
  const auto status = pool_->status();
  for (size_t i = 0; i < status.size(); ++i) {
    const proto::DeviceReport& device = status[i].loaded->device();
    confirm(static_cast<int>(i) + 1, device.id(), device.free_bytes());
  }
}

void EngineRun::connect(const ModelConfig& config, const RunOptions& options) {
  if (plan_.stages.size() < 2) return;
  const int spins = spin_iterations(plan_.stages.size());
  device_->set_wait_spins(spins);
  pipeline_ = std::make_unique<Pipeline>(*device_, config, plan_, spins, options.links);
  pool_->set_release_hook([this] { pipeline_->release_waiters(); });
  pool_->check();  // a failure before the hook was set
  std::vector<LinkConnection> connections;
  try {
    pool_->open_links(pipeline_->worker_links(),
                      {.spin_iterations = spins,
                       .wish = static_cast<proto::LinkWish>(options.links.wish),
                       .doorbell = static_cast<proto::LinkDoorbell>(options.links.doorbell)},
                      [&] { connections.push_back(pipeline_->connect()); });
  } catch (const StartError&) {
    pool_->check();  // a lost stage is why rank 0's links did not connect
    throw;
  }
  engine_->connect(*pipeline_);
  report_links(connections.front(), options.warn_of_fallback);
}

namespace {

proto::PrefixCacheHealth cache_health_of(const PrefixCacheStats& stats, uint64_t page_bytes,
                                         uint64_t image_bytes) {
  const auto bytes = [&](int pages, int images) {
    return static_cast<uint64_t>(pages) * page_bytes + static_cast<uint64_t>(images) * image_bytes;
  };
  proto::PrefixCacheHealth health;
  health.set_lookups(stats.lookups);
  health.set_hits(stats.hits);
  health.set_hit_tokens(stats.hit_tokens);
  health.set_restored(stats.restored);
  health.set_evictions(stats.evictions);
  health.set_prefixes(static_cast<uint64_t>(stats.images));
  health.set_page_groups(static_cast<uint64_t>(stats.pages));
  health.set_bytes(bytes(stats.pages, stats.images));
  health.set_host_prefixes(static_cast<uint64_t>(stats.host_images));
  health.set_host_bytes(bytes(stats.host_pages, stats.host_images));
  return health;
}

}  // namespace

void EngineRun::open_admission(const ModelConfig& config, PrefixCacheMode mode) {
  std::vector<Admission::Stage> stages;
  const auto status = pool_->status();
  for (const StageAssignment& stage : plan_.stages) {
    const int rank = stage.rank.value;
    stages.push_back(
        {.rank = rank,
         .device = stage.device.id,
         .incarnation = rank == 0 ? 0 : status[static_cast<size_t>(rank - 1)].incarnation});
  }
  admission_ = std::make_unique<Admission>(
      engine_->pages(), std::move(stages),
      [this](const std::vector<const proto::AdmissionCommand*>& commands) {
        return pool_->exchange(commands);
      });
  sequences_ = std::make_unique<SequenceKeeper>(
      *engine_, *admission_, pipeline_.get(), mode,
      [this, page_bytes = page_group_bytes(config, {0, config.num_layers}, plan_.limits.kv_dtype),
       image_bytes =
           state_image_bytes(config, {0, config.num_layers})](const PrefixCacheStats& stats) {
        health_.set_prefix_cache(cache_health_of(stats, page_bytes, image_bytes));
      });
}

int EngineRun::max_sequence_tokens() const {
  const StageLimits& limits = plan_.limits;
  return static_cast<int>(
      std::min<int64_t>(limits.max_context_tokens, int64_t{limits.page_groups} * kPageTokens));
}

// Says what the links became, and why one is not what was wished.
void EngineRun::report_links(const LinkConnection& first, bool warn) const {
  std::vector<std::string> fallbacks{first.fallback};
  std::string transports = link_transport_name(first.transport);
  for (const WorkerStatus& s : pool_->status()) {
    fallbacks.push_back(s.links ? s.links->outgoing_fallback() : "");
    transports += ", " + (s.links ? s.links->outgoing_transport() : "");
  }
  log(LogLevel::info, fmt::format("links from stage 0 on: {}", transports));
  for (size_t rank = 0; rank < fallbacks.size(); ++rank) {
    if (fallbacks[rank].empty()) continue;
    log(warn ? LogLevel::warning : LogLevel::info,
        fmt::format("the link from stage {} to {} uses pinned host memory: {}", rank,
                    (rank + 1) % fallbacks.size(), fallbacks[rank]));
  }
}

void EngineRun::describe(const ModelConfig& config) {
  const StageAssignment& stage = plan_.stages.front();
  proto::StageHealth description;
  description.set_rank(0);
  description.set_device(stage.device.id);
  description.set_layer_begin(static_cast<uint32_t>(stage.layers.begin));
  description.set_layer_end(static_cast<uint32_t>(stage.layers.end));
  description.set_weight_bytes(stage.memory.weight_bytes);
  description.set_kv_bytes(stage.memory.kv_bytes);
  description.set_state_bytes(stage.memory.state_bytes);
  description.set_workspace_bytes(stage.memory.workspace_bytes);
  description.set_page_groups(static_cast<uint64_t>(plan_.limits.page_groups));
  description.set_kv_dtype(kv_dtype_name(plan_.limits.kv_dtype));
  health_.set_description(description);
  log(LogLevel::debug, fmt::format("{} layers over {} stages, context {}", config.num_layers,
                                   plan_.stages.size(), plan_.limits.max_context_tokens));
}

int EngineRun::ending_signal(bool reader_gone) const {
  if (reader_gone) return SIGPIPE;
  if (cancelled() == 0) throw_failure();
  return cancelled();
}

void EngineRun::throw_engine_error(const std::string& error) const {
  const auto deadline = Clock::now() + kFailureGrace;
  do {
    pool_->check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (Clock::now() < deadline);
  throw FatalError(ExitCode::engine_died, error);
}

void EngineRun::ask_workers(const Sequence& sequence, const StateLayout& layout, bool load,
                            int fd) {
  if (plan_.stages.size() < 2) return;
  std::vector<proto::MoveState> requests;
  for (size_t rank = 1; rank < plan_.stages.size(); ++rank) {
    proto::MoveState& request = requests.emplace_back();
    request.set_load(load);
    request.set_tokens(static_cast<uint32_t>(sequence.length()));
    for (const int32_t page : sequence.page_groups()) request.add_pages(page);
    request.set_state_slot(sequence.state_slot());
    const LayerRange layers = plan_.stages[rank].layers;
    for (int layer = layers.begin; load && layer < layers.end; ++layer)
      request.add_hashes(layout.layers[static_cast<size_t>(layer)].hash);
  }
  pool_->request_state(requests, fd);
}

void EngineRun::save_state(const Sequence& sequence, StateFileWriter& file) {
  ask_workers(sequence, file.layout(), false, file.fd());
  const auto own = engine_->save_state(sequence, file.fd(), file.layout());
  std::vector<proto::StateMoved> moved;
  if (plan_.stages.size() > 1) moved = pool_->wait_state_moved();
  if (!own) throw StartError(own.error());
  const auto note = [&](size_t rank, const auto& hashes) {
    int layer = plan_.stages[rank].layers.begin;
    for (const uint64_t hash : hashes) file.set_hash(layer++, hash);
  };
  note(0, own.value());
  for (size_t i = 0; i < moved.size(); ++i) {
    if (!moved[i].error().empty())
      throw StartError(fmt::format("stage {}: {}", i + 1, moved[i].error()));
    note(i + 1, moved[i].hashes());
  }
  file.commit();
}

void EngineRun::load_state(Sequence& sequence, const StateFileReader& file) {
  if (const Status status =
          engine_->take_pages(sequence, static_cast<int>(file.description().tokens()));
      !status)
    throw FatalError(ExitCode::request_refused,
                     fmt::format("state {}: {}", file.path().native(), status.error()));
  ask_workers(sequence, file.layout(), true, file.fd());
  const Status own = engine_->load_state(sequence, file.fd(), file.layout());
  std::vector<proto::StateMoved> moved;
  if (plan_.stages.size() > 1) moved = pool_->wait_state_moved();
  const auto check = [&](size_t rank, const std::string& error) {
    if (error.empty()) return;
    throw StartError(fmt::format("state {}: stage {}: {}", file.path().native(), rank, error));
  };
  check(0, own ? "" : own.error());
  for (size_t i = 0; i < moved.size(); ++i) check(i + 1, moved[i].error());
}

std::vector<StageReport> EngineRun::stage_reports() {
  std::vector<std::optional<proto::StageHealth>> answers{health_.snapshot()};
  if (plan_.stages.size() > 1) {
    for (auto& answer : pool_->ask_health(kHealthTimeoutMs)) answers.push_back(std::move(answer));
  }
  const auto status = pool_->status();
  std::vector<StageReport> reports;
  for (const StageAssignment& stage : plan_.stages) {
    const auto rank = static_cast<size_t>(stage.rank.value);
    StageReport report{.rank = stage.rank.value,
                       .pid = rank == 0 ? ::getpid() : status[rank - 1].pid,
                       .device = stage.device.id,
                       .layers = stage.layers,
                       .weight_bytes = stage.memory.weight_bytes,
                       .kv_bytes = stage.memory.kv_bytes};
    if (answers[rank]) {
      report.busy_s = answers[rank]->busy_s();
      report.wait_s = answers[rank]->wait_s();
    }
    reports.push_back(report);
  }
  return reports;
}

}  // namespace convoy
