// Which stage owns which layers, on which device, and what it takes there.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "shared/model/model_config.h"
#include "shared/plan/capacity.h"
#include "shared/plan/device_spec.h"
#include "shared/plan/stage_memory.h"

namespace convoy {

/// What an even split balances, after every stage holds as many page groups as the run can use.
enum class SplitBy {
  memory,  ///< the share of its device's bytes that a stage takes
  weight,  ///< weight bytes
  speed,   ///< weight bytes over the device's speed: time to read them
};

/// What errors call an option: its flag, or the variable that a person gave it with.
struct OptionNames {
  std::string devices = "--devices";
  std::string stage_layers = "--stage-layers";
  std::string max_context = "--max-context";
  std::string kv_capacity = "--kv-capacity";
  std::string device_speed = "--device-speed";
  std::string host_cache = "--host-cache-gib";
};

struct PlanRequest {
  std::vector<DeviceSpec> devices;  ///< one per stage, all of one kind
  std::vector<int> stage_layers;    ///< layers of each stage; empty: split_by decides
  int max_context_tokens = kPageTokens;
  int prefill_chunk_tokens = 512;  ///< a chunk is never longer than the context
  int lanes = 1;
  int image_slots = 0;            ///< as StageLimits
  uint64_t host_cache_bytes = 0;  ///< host memory of all stages together for the prefix cache
  int kv_capacity_tokens = 0;  ///< of all sequences together; 0: what the lanes' contexts can use,
                               ///< but not more than fits
  std::optional<KvDtype> kv_dtype;  ///< nothing: default_kv_dtype() of the devices' kind
  SplitBy split_by = SplitBy::weight;
  std::vector<uint64_t> speeds;      ///< with SplitBy::speed: per stage, at least 1
  std::vector<DeviceMemory> memory;  ///< per stage; empty: nothing is limited
  /// What links take of the device of `rank`; empty: nothing.
  std::function<uint64_t(const StageLimits& limits, int rank)> link_bytes;
  OptionNames names;
};

struct StageAssignment {
  Rank rank;
  DeviceSpec device;
  LayerRange layers;
  StageMemory memory;  ///< at the plan's page groups
  CapacityCurve capacity{};
};

struct StagePlan {
  std::vector<StageAssignment> stages;  ///< by rank; stages[0] is the coordinator's
  StageLimits limits;
  std::vector<DeviceNeed> devices{};  ///< each device once
  bool fits() const;                  ///< every device holds its stages and least_page_groups()
};

/// Page groups without which a run is of no use: those of one whole context, or of the KV capacity
/// that was asked for.
int least_page_groups(const PlanRequest& request);

/// Puts a plan together. Without stage_layers the cut is solve_split()'s (split_solver.h); stages
/// on one device count with equal shares of its bytes there, while fits() and the page groups go by
/// their sum. Where nothing fits the plan is an even deal with least_page_groups().
/// Throws UsageError when the counts do not fit the model or the devices, or there are more devices
/// than layers.
StagePlan make_stage_plan(const ModelConfig& config, const PlanRequest& request);

/// The longest context, up to the model's, for which the plan of `request` would fit, with the KV
/// capacity that it needs itself; 0: none. Plans about twenty times.
int largest_context_tokens(const ModelConfig& config, const PlanRequest& request);

/// The largest KV capacity, in whole page groups and below that of `request`, whose plan does not
/// fit, for which it would; 0: none. Plans about twenty times.
int largest_kv_capacity_tokens(const ModelConfig& config, const PlanRequest& request);

/// Why a plan that does not fit is refused: the device that lacks most, both numbers of bytes, the
/// largest context, or the largest KV capacity where the one that was asked for is what is too
/// much.
std::string plan_refusal(const ModelConfig& config, const PlanRequest& request,
                         const StagePlan& plan);

}  // namespace convoy
