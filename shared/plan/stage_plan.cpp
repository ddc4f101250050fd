#include "shared/plan/stage_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/plan/split_solver.h"

namespace convoy {
namespace {

// Stands for bytes that are not limited; sums of it do not overflow.
constexpr uint64_t kUnlimited = uint64_t{1} << 60;

std::vector<LayerRange> ranges_from_counts(const std::vector<int>& counts) {
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (const int count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

void check_counts(const ModelConfig& config, const PlanRequest& request) {
  const std::vector<int>& counts = request.stage_layers;
  const size_t devices = request.devices.size();
  if (devices > static_cast<size_t>(config.num_layers)) {
    throw UsageError(fmt::format("{} names {} stages, the model has only {} layers",
                                 request.names.devices, devices, config.num_layers));
  }
  if (counts.empty()) return;
  if (counts.size() != devices) {
    throw UsageError(fmt::format("{} names {} stages, {} {}", request.names.stage_layers,
                                 counts.size(), request.names.devices, devices));
  }
  const int total = std::accumulate(counts.begin(), counts.end(), 0);
  if (total != config.num_layers) {
    throw UsageError(fmt::format("{} {} adds up to {} layers, the model has {}",
                                 request.names.stage_layers, fmt::join(counts, ","), total,
                                 config.num_layers));
  }
}

// Free bytes of equal cards differ by a little from moment to moment; the balance must not.
uint64_t leading_bits(uint64_t bytes) {
  constexpr int kBits = 5;
  const int shift = std::max(0, static_cast<int>(std::bit_width(bytes)) - kBits);
  return std::max<uint64_t>(1, ((bytes >> shift) + ((bytes << 1 >> shift) & 1)) << shift);
}

int page_groups_of(int tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The largest number below `failing` that fits, if one from `least` on does; else `least` - 1.
int largest_fitting(int least, int failing, const std::function<bool(int)>& fits) {
  int fitting = least - 1;
  while (failing - fitting > 1) {
    const int tried = fitting + (failing - fitting) / 2;
    (fits(tried) ? fitting : failing) = tried;
  }
  return fitting;
}

class Planner {
 public:
  Planner(const ModelConfig& config, const PlanRequest& request)
      : config_(config),
        request_(request),
        kind_(request.devices.front().kind),
        stages_(static_cast<int>(request.devices.size())) {
    limits_.max_context_tokens = request.max_context_tokens;
    limits_.prefill_chunk_tokens =
        std::min(request.prefill_chunk_tokens, limits_.pages_per_row() * kPageTokens);
    limits_.lanes = request.lanes;
    limits_.page_groups = least_page_groups(request);
    limits_.kv_dtype = request.kv_dtype.value_or(default_kv_dtype(kind_));
    limits_.image_slots = request.image_slots;
    if (request.image_slots > 0) divide_host_cache(request.host_cache_bytes);
    for (int layer = 0; layer < config.num_layers; ++layer)
      needs_.push_back(layer_needs(config, layer, limits_, kind_));
    root_ = root_memory(config, limits_, kind_);
  }

  StagePlan plan() {
    // A prefix cache can use another context's worth.
    const int rows = limits_.lanes + (limits_.image_slots > 0 ? 1 : 0);
    const int most =
        request_.kv_capacity_tokens != 0 ? limits_.page_groups : limits_.pages_per_row() * rows;
    const std::vector<LayerRange> ranges =
        request_.stage_layers.empty() ? split(most) : ranges_from_counts(request_.stage_layers);
    std::vector<LayerNeeds> needs;
    std::vector<CapacityCurve> curves;
    for (int rank = 0; rank < stages_; ++rank) {
      const LayerRange range = ranges[static_cast<size_t>(rank)];
      needs.emplace_back();
      for (int l = range.begin; l < range.end; ++l) needs.back() += needs_[static_cast<size_t>(l)];
      curves.push_back(
          {limits_.page_groups, memory_of(rank, needs.back()).total(), needs.back().page_bytes});
    }
    StagePlan plan;
    plan.devices = device_needs(memory(), curves);
    limits_.page_groups = page_groups_held(plan.devices, most);
    plan.limits = limits_;
    for (int rank = 0; rank < stages_; ++rank) {
      const auto r = static_cast<size_t>(rank);
      plan.stages.push_back(
          {Rank{rank}, request_.devices[r], ranges[r], memory_of(rank, needs[r]), curves[r]});
    }
    return plan;
  }

 private:
  // Half for page groups, half for recurrent states.
  void divide_host_cache(uint64_t bytes) {
    const LayerRange all{0, config_.num_layers};
    const auto count = [&](uint64_t each) {
      constexpr uint64_t kMost = 1U << 24;
      return static_cast<int>(each == 0 ? 0 : std::min(kMost, bytes / 2 / each));
    };
    limits_.host_slots = count(state_image_bytes(config_, all));
    limits_.host_pages = count(page_group_bytes(config_, all, limits_.kv_dtype));
    if (limits_.host_slots == 0) limits_.host_pages = 0;
    if (limits_.host_pages == 0) limits_.host_slots = 0;
  }

  StageMemory memory_of(int rank, const LayerNeeds& needs) const {
    StageMemory memory = stage_memory_of(config_, needs, limits_, kind_);
    if (rank == 0) {
      memory.weight_bytes += root_.weight_bytes;
      memory.workspace_bytes += root_.workspace_bytes;
    }
    if (request_.link_bytes) memory.link_bytes = request_.link_bytes(limits_, rank);
    return memory;
  }

  std::vector<DeviceMemory> memory() const {
    if (!request_.memory.empty()) return request_.memory;
    std::vector<DeviceMemory> memory;
    for (const DeviceSpec& device : request_.devices) memory.push_back({device.id, {}});
    return memory;
  }

  // Bytes beside pages of every range, [begin * layers + end - 1]: they differ between stages only
  // by what a stage has beside its layers.
  std::vector<uint64_t> range_bytes() const {
    StageLimits no_pages = limits_;
    no_pages.page_groups = 0;
    const auto layers = needs_.size();
    std::vector<uint64_t> bytes(layers * layers);
    for (size_t begin = 0; begin < layers; ++begin) {
      LayerNeeds needs;
      for (size_t end = begin; end < layers; ++end) {
        needs += needs_[end];
        bytes[begin * layers + end] = stage_memory_of(config_, needs, no_pages, kind_).total();
      }
    }
    return bytes;
  }

  std::vector<LayerRange> split(int most) const {
    SplitProblem problem;
    problem.layers = config_.num_layers;
    problem.stages = stages_;
    problem.least_page_groups = limits_.page_groups;
    problem.most_page_groups = most;
    std::vector<uint64_t> own;  // what a stage has beside its layers
    const auto devices = memory();
    for (int rank = 0; rank < stages_; ++rank) {
      const auto sharing =
          std::count_if(devices.begin(), devices.end(), [&](const DeviceMemory& d) {
            return d.device == devices[static_cast<size_t>(rank)].device;
          });
      const auto r = static_cast<size_t>(rank);
      problem.available_bytes.push_back(
          std::min(devices[r].available_bytes.value_or(kUnlimited), kUnlimited) /
          static_cast<uint64_t>(sharing));
      own.push_back((rank == 0 ? root_.total() : 0) +
                    (request_.link_bytes ? request_.link_bytes(limits_, rank) : 0));
    }
    const std::vector<uint64_t> ranges = range_bytes();
    problem.fixed_bytes = [&](int stage, LayerRange range) {
      return own[static_cast<size_t>(stage)] +
             ranges[static_cast<size_t>(range.begin * config_.num_layers + range.end - 1)];
    };
    for (const LayerNeeds& layer : needs_) problem.page_bytes.push_back(layer.page_bytes);
    set_load(problem);
    return solve_split(problem).stages;
  }

  void set_load(SplitProblem& problem) const {
    const auto stages = static_cast<size_t>(stages_);
    if (request_.split_by == SplitBy::memory) {
      // An unknown device counts as large as the largest known one.
      uint64_t largest = 1;
      for (const uint64_t bytes : problem.available_bytes) {
        if (bytes < kUnlimited / stages) largest = std::max(largest, bytes);
      }
      for (const uint64_t bytes : problem.available_bytes)
        problem.rate.push_back(leading_bits(std::min(bytes, largest)));
      return;
    }
    for (const LayerNeeds& layer : needs_) problem.layer_load.push_back(layer.weight_bytes);
    problem.first_load = root_.weight_bytes;
    if (request_.split_by == SplitBy::speed) {
      CONVOY_CHECK_OP(request_.speeds.size(), ==, stages);
      problem.rate = request_.speeds;
    } else {
      problem.rate.assign(stages, 1);
    }
  }

  const ModelConfig& config_;
  const PlanRequest& request_;
  DeviceKind kind_;
  int stages_;
  StageLimits limits_;
  std::vector<LayerNeeds> needs_;  // by layer
  StageMemory root_;
};

}  // namespace

bool StagePlan::fits() const {
  return std::all_of(devices.begin(), devices.end(),
                     [](const DeviceNeed& device) { return device.fits(); });
}

int least_page_groups(const PlanRequest& request) {
  return page_groups_of(request.kv_capacity_tokens != 0 ? request.kv_capacity_tokens
                                                        : request.max_context_tokens);
}

StagePlan make_stage_plan(const ModelConfig& config, const PlanRequest& request) {
  CONVOY_CHECK(!request.devices.empty(), "a plan needs a device");
  check_counts(config, request);
  return Planner(config, request).plan();
}

int largest_context_tokens(const ModelConfig& config, const PlanRequest& request) {
  PlanRequest tried = request;
  tried.kv_capacity_tokens = 0;
  const auto tokens = [&](int pages) {
    return std::min(pages * kPageTokens, config.max_position_embeddings);
  };
  const int most = page_groups_of(config.max_position_embeddings);
  return tokens(largest_fitting(1, most + 1, [&](int pages) {
    tried.max_context_tokens = tokens(pages);
    return make_stage_plan(config, tried).fits();
  }));
}

int largest_kv_capacity_tokens(const ModelConfig& config, const PlanRequest& request) {
  PlanRequest tried = request;
  const int least = page_groups_of(request.max_context_tokens);
  const int pages = largest_fitting(least, least_page_groups(request), [&](int page_groups) {
    tried.kv_capacity_tokens = page_groups * kPageTokens;
    return make_stage_plan(config, tried).fits();
  });
  return pages < least ? 0 : pages * kPageTokens;
}

namespace {

std::string what_would_fit(const ModelConfig& config, const PlanRequest& request) {
  const int context = largest_context_tokens(config, request);
  if (request.kv_capacity_tokens != 0 && context >= request.max_context_tokens) {
    if (const int capacity = largest_kv_capacity_tokens(config, request); capacity != 0)
      return fmt::format("the largest {} that fits is {} tokens", request.names.kv_capacity,
                         capacity);
  }
  return context == 0 ? "no context fits"
                      : fmt::format("the largest context that fits is {} tokens", context);
}

}  // namespace

std::string plan_refusal(const ModelConfig& config, const PlanRequest& request,
                         const StagePlan& plan) {
  const auto lacking = [](const DeviceNeed& device) {
    return device.fits() ? 0 : device.need.bytes_min - *device.memory.available_bytes;
  };
  const DeviceNeed& worst = *std::max_element(
      plan.devices.begin(), plan.devices.end(),
      [&](const DeviceNeed& a, const DeviceNeed& b) { return lacking(a) < lacking(b); });
  return fmt::format(
      "device {}: the model with a context of {} tokens{} needs {} bytes there, {} are available; "
      "{}",
      worst.memory.device, plan.limits.max_context_tokens,
      request.kv_capacity_tokens == 0
          ? ""
          : fmt::format(" and KV for {} tokens", request.kv_capacity_tokens),
      worst.need.bytes_min, worst.memory.available_bytes.value_or(0),
      what_would_fit(config, request));
}

}  // namespace convoy
