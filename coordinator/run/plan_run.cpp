// What a run asks of its plan, and whether it gets it.
#include <fmt/format.h>

#include <algorithm>

#include "base/exit_code.h"
#include "coordinator/run/device_memory.h"
#include "coordinator/run/engine_run.h"
#include "shared/ipc/host_memory.h"
#include "shared/stage/link_layout.h"
#include "shared/stage/list_devices.h"

namespace convoy {

std::filesystem::path pool_directory(const RunOptions& options) {
  return options.runtime_root / options.attach;
}

namespace {

// What the pool calls "cuda:0" may be another card's name here.
DeviceSpec device_of_pool(const InstanceMember& member) {
  DeviceSpec device = parse_devices(member.device, "instance.json").front();
  if (member.uuid.empty()) return device;
  if (identify_devices({device}).front().uuid != member.uuid) device.id = member.uuid;
  device.uuid = member.uuid;
  return device;
}

std::vector<DeviceSpec> devices_of_run(const RunOptions& options) {
  std::vector<DeviceSpec> devices = identify_devices(options.devices);
  if (options.attach.empty()) return devices;
  if (devices.size() != 1) {
    throw UsageError(fmt::format(
        "--attach takes one device for rank 0, {} names {}; the other stages are the pool's",
        options.names.devices, devices.size()));
  }
  const auto alive = sweep_and_list_instances(options.runtime_root);
  if (std::find(alive.begin(), alive.end(), pool_directory(options)) == alive.end()) {
    throw StartError(fmt::format("no pool '{}' is running in {}; start one with convoy up",
                                 options.attach, options.runtime_root.native()));
  }
  const auto info = read_instance_info(pool_directory(options));
  if (!info) throw StartError(info.error());
  if (info.value().kind != "pool")
    throw StartError(
        fmt::format("instance '{}' is a run, not a pool of waiting workers", options.attach));
  for (const InstanceMember& member : info.value().members) {
    const DeviceSpec spec = device_of_pool(member);
    if (spec.kind != devices.front().kind) {
      throw UsageError(fmt::format("{} {} and the pool's {} cannot be mixed", options.names.devices,
                                   devices.front().id, spec.id));
    }
    devices.push_back(spec);
  }
  return devices;
}

// Whole numbers, as the solver wants them.
std::vector<uint64_t> speeds_of_run(const std::vector<DeviceSpec>& devices,
                                    const RunOptions& options) {
  constexpr double kSteps = 1000;
  std::vector<uint64_t> speeds;
  const auto given = values_of(devices, options.device_speeds, options.names.device_speed);
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!given[i]) {
      throw UsageError(
          fmt::format("{} does not name {}", options.names.device_speed, devices[i].id));
    }
    speeds.push_back(static_cast<uint64_t>(std::max(1.0, *given[i] * kSteps)));
  }
  return speeds;
}

}  // namespace

PlanRequest plan_request(const ModelConfig& config, const RunOptions& options) {
  std::vector<DeviceSpec> devices = devices_of_run(options);
  if (!options.allow_mixed_architectures && devices.size() > 1)
    refuse_mixed_architectures(list_devices(devices), options.names.devices);
  std::vector<DeviceMemory> memory =
      device_memory(devices, options.memory_limits, options.kv_headroom_bytes);
  return plan_request(config, options, std::move(devices), std::move(memory));
}

ContextLimit context_limit(const ModelConfig& config, const RunOptions& options,
                           const StagePlan& plan) {
  const int tokens = plan.limits.max_context_tokens;
  if (tokens == config.max_position_embeddings) return {tokens, ""};
  const bool by_capacity = options.max_context_tokens == 0 && tokens == options.kv_capacity_tokens;
  return {tokens, by_capacity ? options.names.kv_capacity : options.names.max_context};
}

std::string describe(const ContextLimit& context) {
  if (context.option.empty()) return fmt::format("the model's context holds {}", context.tokens);
  return fmt::format("the context holds {}; raise {}", context.tokens, context.option);
}

PlanRequest plan_request(const ModelConfig& config, const RunOptions& options,
                         std::vector<DeviceSpec> devices, std::vector<DeviceMemory> memory) {
  PlanRequest request;
  request.max_context_tokens =
      options.max_context_tokens != 0
          ? options.max_context_tokens
          : std::min(config.max_position_embeddings, kDefaultContextTokens);
  if (request.max_context_tokens > config.max_position_embeddings) {
    throw UsageError(fmt::format("{} {} is more than the model's {} positions",
                                 options.names.max_context, request.max_context_tokens,
                                 config.max_position_embeddings));
  }
  request.kv_capacity_tokens = options.kv_capacity_tokens;
  if (request.kv_capacity_tokens != 0 && request.kv_capacity_tokens < request.max_context_tokens) {
    if (options.max_context_tokens != 0) {
      throw UsageError(fmt::format("{} {} is less than {} {}", options.names.kv_capacity,
                                   request.kv_capacity_tokens, options.names.max_context,
                                   request.max_context_tokens));
    }
    request.max_context_tokens = request.kv_capacity_tokens;
  }
  request.prefill_chunk_tokens = options.prefill_chunk_tokens;
  request.lanes = options.lanes;
  if (options.prefix_cache != PrefixCacheMode::off) request.image_slots = options.prefix_images;
  request.host_cache_bytes = options.host_cache_bytes;
  if (const auto available = available_host_bytes(); options.host_cache_bytes > available) {
    throw StartError(fmt::format("{} asks for {} bytes of host memory, {} are available",
                                 options.names.host_cache, options.host_cache_bytes, available));
  }
  request.names = options.names;
  request.kv_dtype = options.kv_dtype;
  request.stage_layers = options.stage_layers;
  request.devices = std::move(devices);
  const DeviceKind kind = request.devices.front().kind;
  request.memory = std::move(memory);
  // CPU stages live in the same memory.
  for (DeviceMemory& here : request.memory) {
    if (kind == DeviceKind::cpu && here.available_bytes && request.image_slots > 0)
      *here.available_bytes -= std::min(*here.available_bytes, request.host_cache_bytes);
  }
  request.split_by =
      options.split_by.value_or(kind == DeviceKind::cpu ? SplitBy::weight : SplitBy::memory);
  if (request.split_by == SplitBy::speed) request.speeds = speeds_of_run(request.devices, options);
  std::vector<LinkStage> stages;
  for (size_t rank = 0; rank < request.devices.size(); ++rank) {
    const DeviceMemory& sender = request.memory[rank == 0 ? request.memory.size() - 1 : rank - 1];
    stages.push_back({.rank = static_cast<int>(rank),
                      .stages = static_cast<int>(request.devices.size()),
                      .shares_device = sender.device == request.memory[rank].device});
  }
  request.link_bytes = [&config, kind, stages, choice = options.links](const StageLimits& limits,
                                                                       int rank) {
    return link_bytes(config, limits, kind, stages[static_cast<size_t>(rank)], choice);
  };
  return request;
}

StagePlan plan_run(const ModelConfig& config, const RunOptions& options) {
  const PlanRequest request = plan_request(config, options);
  StagePlan plan = make_stage_plan(config, request);
  if (!plan.fits()) throw StartError(plan_refusal(config, request, plan));
  return plan;
}

}  // namespace convoy
