// Everything of one run, put together: instance folder, workers, segments, engine. Loading happens
// in the constructor.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/console/progress.h"
#include "coordinator/engine/admission.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/sequence_keeper.h"
#include "coordinator/workers/worker_pool.h"
#include "kernels/device/stalling_calls.h"
#include "shared/control/health_server.h"
#include "shared/control/instance_directory.h"
#include "shared/plan/device_values.h"
#include "shared/plan/stage_plan.h"
#include "shared/stage/link_layout.h"
#include "shared/state/state_file.h"

namespace convoy {

/// Engine options as a person gave them, checked.
struct RunOptions {
  std::filesystem::path model_directory;
  LoadFormat load_format = LoadFormat::automatic;
  std::vector<DeviceSpec> devices;  ///< with attach: rank 0's device only
  bool allow_mixed_architectures = false;
  std::vector<int> stage_layers;
  int max_context_tokens = 0;  ///< 0: the model's, at most kDefaultContextTokens
  int prefill_chunk_tokens = 512;
  int lanes = 1;                    ///< sequences in one step
  int kv_capacity_tokens = 0;       ///< of all sequences together; 0: what they can use and fits
  std::optional<KvDtype> kv_dtype;  ///< nothing: the default of the devices' kind
  std::optional<SplitBy> split_by;  ///< nothing: by weight on CPU devices, by memory on others
  std::vector<DeviceValue<uint64_t>> memory_limits;
  std::vector<DeviceValue<double>> device_speeds;
  std::optional<uint64_t> kv_headroom_bytes;  ///< nothing: the default of the devices' kind
  PrefixCacheMode prefix_cache = PrefixCacheMode::off;
  int prefix_images = 8;
  uint64_t host_cache_bytes = 0;  ///< of all stages together
  int threads = 0;
  bool cuda_graphs = true;
  LinkChoice links;
  bool warn_of_fallback = true;  ///< where a link is not what `links` wishes
  OptionNames names;
  std::string attach;    ///< name of a pool; empty: spawn workers
  std::string instance;  ///< name of this run's folder; empty: made from the pid
  std::filesystem::path runtime_root;
  std::filesystem::path worker_program;
  std::string log_level;
  std::string test_hold;
  bool test_run_ahead = false;  ///< on CPU devices, too
};

inline constexpr int kDefaultContextTokens = 8192;

/// What a sequence may hold.
struct ContextLimit {
  int tokens = 0;
  std::string option;  ///< that raises it, as it was given; empty: it is the model's
};
ContextLimit context_limit(const ModelConfig& config, const RunOptions& options,
                           const StagePlan& plan);
/// "the context holds 64; raise --max-context", or that it is the model's.
std::string describe(const ContextLimit& context);

/// The folder of the pool that `options.attach` names.
std::filesystem::path pool_directory(const RunOptions& options);

/// What `options` ask of the plan: devices, what may be taken there, context. Opens no device. With
/// attach the pool's folder says how many stages. Throws UsageError or StartError.
PlanRequest plan_request(const ModelConfig& config, const RunOptions& options);
/// The same for the given devices and their memory, one entry of each per stage. `config` has to
/// outlive the request.
PlanRequest plan_request(const ModelConfig& config, const RunOptions& options,
                         std::vector<DeviceSpec> devices, std::vector<DeviceMemory> memory);

/// make_stage_plan() of that request, which must fit: throws StartError with plan_refusal().
StagePlan plan_run(const ModelConfig& config, const RunOptions& options);

/// One stage's line in summaries and JSON.
struct StageReport {
  int rank = 0;
  int pid = 0;
  std::string device;
  LayerRange layers;
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  double busy_s = 0;
  double wait_s = 0;
};

/// Main thread. Destroying it ends every worker in order and removes the folder.
class EngineRun {
 public:
  /// `plan`: plan_run() of these options. `token_ids`: ids below it are the tokenizer's and may be
  /// chosen; without a tokenizer the model's vocab_size. Throws FatalError; then nothing is left
  /// behind.
  EngineRun(const RunOptions& options, StagePlan plan, const Checkpoint& checkpoint, int token_ids,
            ProgressDisplay& display);
  ~EngineRun();
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;

  Engine& engine() { return *engine_; }
  /// Where every sequence of this run comes from and goes to.
  SequenceKeeper& sequences() { return *sequences_; }
  proto::PrefixCacheHealth cache_health() const { return health_.snapshot().prefix_cache(); }
  /// Positions that one sequence can have: the context, or all page groups where they are fewer.
  int max_sequence_tokens() const;
  /// The signal that asked to stop, or 0.
  int cancelled() const { return pool_->cancelled(); }
  /// Throws FatalError when a stage was lost.
  void throw_failure() const { pool_->throw_failure(); }
  /// The signal that the program has to end by once nothing more runs, or 0: SIGPIPE where the
  /// reader of its output is gone, or cancelled(). Throws when a stage was lost.
  int ending_signal(bool reader_gone) const;
  /// Readable once cancelled() or throw_failure() has something to say, for poll().
  int stop_fd() const { return pool_->stop_fd(); }
  /// While set, Ctrl-C calls this on the control thread instead of cancelling; empty: it cancels
  /// again.
  void set_interrupt_handler(std::function<void()> handler) {
    pool_->set_interrupt_handler(std::move(handler));
  }
  /// What really happened when the engine returned an error: the lost stage, if one was lost. Never
  /// returns.
  [[noreturn]] void throw_engine_error(const std::string& error) const;
  /// Writes the state of a sequence, every stage its layers, and commits the file. Throws
  /// StartError when it cannot be written, FatalError when a stage is lost.
  void save_state(const Sequence& sequence, StateFileWriter& file);
  /// Gives a fresh sequence the state of a file. Throws StartError for altered bytes, FatalError
  /// when it does not fit or a stage is lost.
  void load_state(Sequence& sequence, const StateFileReader& file);
  /// Asks every stage for its counters.
  std::vector<StageReport> stage_reports();
  double load_seconds() const { return load_seconds_; }
  const StagePlan& plan() const { return plan_; }

 private:
  void start_workers(const RunOptions& options);
  void load(const RunOptions& options, const Checkpoint& checkpoint, int token_ids,
            ProgressDisplay& display);
  void confirm_architectures() const;
  void confirm_memory(const RunOptions& options);
  void connect(const ModelConfig& config, const RunOptions& options);
  void open_admission(const ModelConfig& config, PrefixCacheMode mode);
  void report_links(const LinkConnection& first, bool warn) const;
  void publish_members() const;
  void ask_workers(const Sequence& sequence, const StateLayout& layout, bool load, int fd);
  void describe(const ModelConfig& config);

  StagePlan plan_;
  InstanceDirectory instance_;
  bool attached_;
  HealthState health_;
  std::unique_ptr<HealthServer> health_server_;
  HoldPoint hold_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<WorkerPool>
      pool_;  // goes before the pipeline: until it has ended, its thread may release the waiters
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<SequenceKeeper> sequences_;
  double load_seconds_ = 0;
  std::optional<NoStallingCalls> serving_;  // goes first
};

}  // namespace convoy
