#include "coordinator/bench/bench_runner.h"

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/exit_code.h"
#include "shared/plan/weight_table.h"
#include "shared/stage/list_devices.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned kPromptSeed = 20;
// Long enough for a card to lower its clock when nothing runs.
constexpr auto kQuietTime = std::chrono::milliseconds(500);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Work {
  uint64_t bytes = 0;  // of weights that a decode step reads
  double flops = 0;    // of matrix products, per prompt token
};

void add_table(Work& work, const std::vector<WeightSpec>& table, DeviceKind kind,
               bool every_position) {
  for (const WeightSpec& spec : table) {
    if (spec.form == WeightForm::table) continue;  // a row per token
    work.bytes += weight_bytes(spec, kind);
    if (spec.form == WeightForm::linear && every_position)
      work.flops += 2.0 * spec.out_features * spec.in_features;
  }
}

std::vector<BenchStage> stages_of(const ModelConfig& config, const StagePlan& plan) {
  std::vector<BenchStage> stages;
  for (const StageAssignment& stage : plan.stages) {
    Work work;
    for (int layer = stage.layers.begin; layer < stage.layers.end; ++layer)
      add_table(work, layer_weight_table(config, layer), stage.device.kind, true);
    // The head sees the last position only.
    if (stage.rank.value == 0) add_table(work, root_weight_table(config), stage.device.kind, false);
    stages.push_back(
        {.rank = stage.rank.value,
         .device = stage.device.id,
         .layers = stage.layers,
         .step_weight_bytes = work.bytes,
         .prefill_flops = work.flops,
         .position_kv_bytes =
             page_group_bytes(config, stage.layers, plan.limits.kv_dtype) / uint64_t{kPageTokens}});
  }
  return stages;
}

// The sequences of one round, ready to decode.
struct Lanes {
  std::vector<AdmittedSequence> owned;
  std::vector<Sequence*> columns;
  std::vector<int32_t> next;
};

// One loaded model, round after round.
class Rounds {
 public:
  Rounds(EngineRun& run, int lanes, int vocab_size, bool sampled)
      : run_(run), lanes_(lanes), vocab_size_(vocab_size), sampled_(sampled) {}

  void run(int prompt_tokens, int decode_tokens, bool counts) {
    Lanes lanes = start(prompt_tokens, decode_tokens, counts);
    if (decode_tokens > 0) {
      const double seconds = decode(lanes, decode_tokens);
      if (counts) step_ms.push_back(seconds * 1e3 / decode_tokens);
    }
    end(lanes);
  }

  // What no stage computed for, spread over the ways from stage to stage and back: a decode step
  // goes through them one after another.
  std::optional<double> hop_us(int prompt_tokens, int decode_tokens) {
    constexpr int kSettlingSteps = 4;  // until the prompt's times are in the stages' counters
    const auto stages = static_cast<double>(run_.plan().stages.size());
    const int steps = decode_tokens - kSettlingSteps;
    if (stages < 2 || steps < kSettlingSteps) return std::nullopt;
    Lanes lanes = start(prompt_tokens, decode_tokens, false);
    decode(lanes, kSettlingSteps);
    const double before = busy_seconds();
    const double seconds = decode(lanes, steps);
    const double waited = seconds - (busy_seconds() - before);
    end(lanes);
    return waited / (steps * stages) * 1e6;
  }

  std::vector<double> prefill_s, step_ms;

 private:
  Lanes start(int prompt_tokens, int decode_tokens, bool counts) {
    Lanes lanes;
    for (int lane = 0; lane < lanes_; ++lane) {
      auto admitted = run_.sequences().admit(lane, prompt_tokens + decode_tokens);
      if (!admitted) give_up(admitted.error());
      if (admitted.value().refusal)
        throw FatalError(ExitCode::request_refused, admitted.value().refusal->message());
      lanes.owned.push_back(std::move(admitted).value());
      lanes.columns.push_back(lanes.owned.back().sequence.get());
      const std::vector<int32_t> prompt = random_prompt(prompt_tokens, lane);
      const auto begin = Clock::now();
      const auto first = run_.engine().prefill(*lanes.columns.back(), prompt);
      if (!first) give_up(first.error());
      if (counts) prefill_s.push_back(seconds_since(begin));
      lanes.next.push_back(first.value());
    }
    return lanes;
  }
  double decode(Lanes& lanes, int steps) {
    const auto begin = Clock::now();
    const int ahead = run_.engine().runs_ahead() ? static_cast<int>(Engine::kDecodeAhead) : 1;
    const auto check = [&](const Status& status) {
      if (!status) give_up(status.error());
    };
    for (int known = 0, issued = 0; known < steps; ++known) {
      for (; issued < steps && issued - known < ahead; ++issued) {
        const std::span<const int32_t> none;
        check(run_.engine().decode_ahead(
            lanes.columns, issued == known ? std::span<const int32_t>(lanes.next) : none,
            rules(lanes, issued)));
      }
      check(run_.engine().wait_decoded(lanes.next));
    }
    return seconds_since(begin);
  }
  void end(Lanes& lanes) {
    for (AdmittedSequence& admitted : lanes.owned) {
      if (const Status status = run_.sequences().retire(std::move(admitted)); !status)
        give_up(status.error());
    }
  }
  // How the tokens of step `step` are drawn.
  std::vector<DrawRule> rules(const Lanes& lanes, int step) const {
    std::vector<DrawRule> rules;
    if (!sampled_) return rules;
    for (size_t lane = 0; lane < lanes.columns.size(); ++lane) {
      rules.push_back({.top_p = 0.95,
                       .seed = lane,
                       .token_index = static_cast<uint64_t>(step),
                       .temperature = 0.8F,
                       .top_k = 20});
    }
    return rules;
  }
  double busy_seconds() {
    double seconds = 0;
    for (const StageReport& stage : run_.stage_reports()) seconds += stage.busy_s;
    return seconds;
  }
  std::vector<int32_t> random_prompt(int tokens, int lane) const {
    std::mt19937 random(kPromptSeed + static_cast<unsigned>(lane));
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size_));
    return ids;
  }
  [[noreturn]] void give_up(const std::string& error) const {
    if (run_.cancelled() != 0) throw Cancelled(run_.cancelled());
    run_.throw_engine_error(error);
  }

  EngineRun& run_;
  int lanes_;
  int vocab_size_;
  bool sampled_;
};

}  // namespace

BenchSet run_bench(const RunOptions& options, const Checkpoint& checkpoint,
                   const BenchOptions& bench, ProgressDisplay& display) {
  const ModelConfig& config = checkpoint.config();
  // Planned anew: what ran before may only now have given its memory back.
  EngineRun run(options, plan_run(config, options), checkpoint, config.vocab_size, display);
  std::vector<std::string> uuids;
  for (const ListedDevice& device : list_devices(options.devices)) uuids.push_back(device.uuid);
  const auto sensor = uuids.empty() ? nullptr : GpuSensor::open();

  BenchSet set;
  set.load_s = run.load_seconds();
  set.kv_dtype = kv_dtype_name(run.plan().limits.kv_dtype);
  set.stages = stages_of(config, run.plan());
  const auto measure = [&](BenchCase result) {
    const int prompt = result.prompt_tokens, decode = result.decode_tokens;
    Rounds rounds(run, result.lanes, config.vocab_size, bench.sampled);
    for (int i = 0; i < bench.warm_up; ++i) rounds.run(prompt, decode, false);
    ClockWatch watch(sensor.get(), uuids);
    for (int i = 0; i < bench.repetitions; ++i) rounds.run(prompt, decode, true);
    result.clocks = watch.stop();
    result.prefill_s = spread_of(rounds.prefill_s);
    result.step_ms = spread_of(rounds.step_ms);
    result.hop_us = rounds.hop_us(prompt, decode);
    set.cases.push_back(std::move(result));
  };
  for (const int prompt : bench.prompt_lengths) {
    for (const int decode : bench.decode_lengths) {
      for (const int lanes : bench.lanes) {
        BenchCase wanted;
        wanted.lanes = lanes;
        wanted.prompt_tokens = prompt;
        wanted.decode_tokens = decode;
        measure(std::move(wanted));
      }
    }
  }
  if (sensor) {
    std::this_thread::sleep_for(kQuietTime / 2);
    ClockWatch watch(sensor.get(), uuids);
    std::this_thread::sleep_for(kQuietTime / 2);
    set.waiting_clocks = watch.stop();
  }
  if (run.cancelled() != 0) throw Cancelled(run.cancelled());
  return set;
}

}  // namespace convoy
