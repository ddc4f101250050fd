// Runs prompts and tokens through all stages, as rank 0 sees it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "coordinator/engine/pipeline.h"
#include "coordinator/engine/root.h"
#include "coordinator/engine/step_planner.h"
#include "kernels/device/device.h"
#include "shared/control/health_state.h"
#include "shared/control/hold_point.h"
#include "shared/kv/page_pool.h"
#include "shared/kv/prefix_cache.h"
#include "shared/kv/sequence.h"
#include "shared/stage/stage_executor.h"
#include "shared/stage/step_clock.h"

namespace convoy {

/// Owns rank 0's stage and the allocator of page groups. One thread uses it.
///
/// Errors of prefill() and decode(): a sequence is full, no page group is free, or a stage was lost
/// (the pipeline's waits were released); the sequences are then not usable any more.
class Engine {
 public:
  struct Parts {
    Device& device;
    const Checkpoint& checkpoint;
    const StagePlan& plan;
    HealthState& health;
    HoldPoint& hold;
    int valid_vocab = 0;
    bool run_ahead = false;  ///< also where the device computes before a call returns
  };
  /// Loads rank 0's weights. Throws StartError; what `progress` throws passes through.
  Engine(const Parts& parts, const LoadProgress& progress);
  /// Waits for what is enqueued, releasing waits for other stages.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Before links open: loads every kernel and captures the steps that repeat (unless `graphs` is
  /// false). Throws StartError.
  void prepare(bool graphs);
  /// Must be called before the first step when there is more than one stage. `pipeline` outlives
  /// the engine.
  void connect(Pipeline& pipeline) { pipeline_ = &pipeline; }
  /// Asked between chunks and steps: true gives up with an error.
  void set_cancelled(std::function<bool()> cancelled) { cancelled_ = std::move(cancelled); }

  PagePool& pages() { return pages_; }
  /// Runs what a sequence lacks of its prompt (at least one token; what it has is whole pages) in
  /// chunks that overlap over the stages. Gives the first token to follow. `images`: where the
  /// state on the way is left in which slots, in order; a chunk ends there. `rule`: how that token
  /// is drawn. `stop`, which may be empty, is asked between chunks: true ends it with kStopped
  /// where the sequence now is, its images up to there left.
  Result<int32_t> prefill(Sequence& sequence, std::span<const int32_t> ids,
                          std::span<const StateImage> images = {}, const DrawRule& rule = {},
                          const std::function<bool()>& stop = {});
  static constexpr int32_t kStopped = -2;  ///< no token
  /// Begins a fresh sequence behind a prefix that the stages hold.
  Status adopt(Sequence& sequence, const PrefixHit& prefix);
  /// Has every stage follow what the prefix cache did.
  Status apply(std::span<const CacheChange> changes);
  /// One token per sequence: `ids[i]` is appended to `sequences[i]`, `next[i]` is what follows it,
  /// as rules[i] draws it (none: greedy). -1: every token was masked; the same in what
  /// wait_decoded() gives.
  Status decode(std::span<Sequence* const> sequences, std::span<const int32_t> ids,
                std::span<int32_t> next, std::span<const DrawRule> rules = {});

  /// Whether the host can be a step ahead of the device.
  bool runs_ahead() const { return runs_ahead_; }
  /// decode() without waiting for what follows, which stays on the device: without `ids` those that
  /// the step before chose for the same sequences are appended. At most kDecodeAhead calls may be
  /// without their wait_decoded(). The sequences keep what was appended: who stops at an earlier
  /// token has to drop them.
  Status decode_ahead(std::span<Sequence* const> sequences, std::span<const int32_t> ids = {},
                      std::span<const DrawRule> rules = {});
  /// Waits for the oldest decode_ahead() and gives what follows it. A prefill() or decode() forgets
  /// those that nobody waited for.
  Status wait_decoded(std::span<int32_t> next);
  static constexpr size_t kDecodeAhead = 2;

  /// Saves rank 0's part of a sequence's state and makes the workers save theirs, as they were
  /// asked (WorkerPool::request_state). No step may be in flight ahead. Gives the hashes of rank
  /// 0's layers.
  Result<std::vector<uint64_t>> save_state(const Sequence& sequence, int fd,
                                           const StateLayout& layout);
  /// The same the other way, in two steps: takes `tokens` positions for a fresh sequence and tells
  /// every stage of its pages; then, once the workers were asked, loads.
  Status take_pages(Sequence& sequence, int tokens);
  Status load_state(const Sequence& sequence, int fd, const StateLayout& layout);

  /// Copies the logits of the last prefill or of lane `lane` of the last decode to the host,
  /// vocab_size values.
  void copy_logits(int lane, std::span<float> out);
  int vocab_size() const { return root_.vocab_size(); }
  const ModelConfig& config() const { return executor_.config(); }
  const StageLimits& limits() const { return limits_; }

 private:
  Status issue(std::span<const int32_t> ids);
  Status collect(int lanes, bool last);
  void choose(int lanes, std::span<const DrawRule> rules);
  Status wait_chosen(std::span<int32_t> next);
  Status publish_deltas(StepKind kind, std::span<const BlockTableDelta> deltas);
  Status publish_save();
  void take_times();

  Device& device_;
  HealthState& health_;
  HoldPoint& hold_;
  StageLimits limits_;
  int stages_;
  bool runs_ahead_;
  std::unique_ptr<Stream> stream_;
  Root root_;
  StageExecutor executor_;
  PagePool pages_;
  Pipeline* pipeline_ = nullptr;
  std::function<bool()> cancelled_ = [] { return false; };
  PlannedStep step_;
  std::deque<uint64_t> choices_;  // that nobody waited for, oldest first
  StepClock issue_clock_;         // rank 0's layers
  StepClock collect_clock_;       // waiting for the last stage, then head and choice
  double busy_ = 0;  // seconds of the step that is not reported yet: one token, or a whole prompt
  double waited_ = 0;
};

}  // namespace convoy
