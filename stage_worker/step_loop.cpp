#include "stage_worker/step_loop.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRingPollMs = 200;  // how often a worker without steps looks whether it should stop

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

HoldPhase phase_of(StepKind kind) {
  return kind == StepKind::prefill ? HoldPhase::prefill : HoldPhase::decode;
}

}  // namespace

Result<std::unique_ptr<StepLoop>> StepLoop::open(const StepLoopOptions& options,
                                                 StageExecutor& executor, Device& device,
                                                 Stream& stream, const proto::OpenLinks& sizes,
                                                 std::vector<UniqueFd> descriptors) {
  const std::array<std::pair<const char*, uint64_t>, 3> wanted{
      {{"step ring", sizes.ring_bytes()},
       {"incoming link", sizes.incoming_bytes()},
       {"outgoing link", sizes.outgoing_bytes()}}};
  std::vector<SharedRegion> regions;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto region = SharedRegion::open(std::move(descriptors[i]), wanted[i].second, wanted[i].first);
    if (!region) return Error{region.error()};
    regions.push_back(std::move(region).value());
  }

  const StageLimits& limits = executor.limits();
  auto ring = StepRingReader::open(regions[0], {.limits = {.kv_rows = limits.lanes,
                                                           .blocks_per_row = limits.pages_per_row(),
                                                           .pages = limits.page_groups,
                                                           .positions = limits.max_context_tokens,
                                                           .state_slots = limits.state_slots()},
                                                .spin_iterations = options.spin_iterations});
  if (!ring) return Error{ring.error()};
  auto incoming = StageLinkReceiver::open(
      regions[1], residual_link_options(executor.config(), limits), &device);
  if (!incoming) return Error{incoming.error()};
  auto outgoing = StageLinkSender::open(
      regions[2],
      options.last ? back_link_options(executor.config(), limits, options.stages)
                   : residual_link_options(executor.config(), limits),
      &device);
  if (!outgoing) return Error{outgoing.error()};
  return std::unique_ptr<StepLoop>(
      new StepLoop(options, executor, stream, std::move(regions), std::move(ring).value(),
                   std::move(incoming).value(), std::move(outgoing).value()));
}

StepLoop::StepLoop(const StepLoopOptions& options, StageExecutor& executor, Stream& stream,
                   std::vector<SharedRegion> regions, StepRingReader ring,
                   StageLinkReceiver incoming, StageLinkSender outgoing)
    : options_(options),
      executor_(executor),
      stream_(stream),
      regions_(std::move(regions)),
      ring_(std::move(ring)),
      incoming_(std::move(incoming)),
      outgoing_(std::move(outgoing)) {}

void StepLoop::release_waiters() {
  incoming_.release_waiters();
  outgoing_.release_waiters();
}

Status StepLoop::run(HealthState& health, HoldPoint& hold, const std::function<bool()>& stopping) {
  while (!stopping()) {
    auto next = ring_.wait_next(kRingPollMs);
    if (!next) return Error{next.error()};
    if (!next.value()) continue;
    const ConstStepEntry& entry = *next.value();
    hold.reach(options_.rank, phase_of(entry.header->kind), health, stopping);
    if (Status status = execute(entry, health); !status) return stopping() ? Status() : status;
    ring_.release(stream_);
  }
  return {};
}

Status StepLoop::execute(const ConstStepEntry& entry, HealthState& health) {
  const StepHeader& header = *entry.header;
  for (uint32_t i = 0; i < header.delta_count; ++i) {
    executor_.set_page(stream_, entry.deltas[i].kv_row, entry.deltas[i].block,
                       entry.deltas[i].page);
  }
  if (!step_runs_layers(header.kind)) return {};
  if (header.kind == StepKind::verify)
    return Error{"step kind verify is not supported by this build"};

  const uint32_t columns = header.lanes * header.width;
  const size_t column_bytes = static_cast<size_t>(executor_.hidden()) * sizeof(float);
  // A generated token is due as soon as the one before has left; a prompt when its step arrives.
  const auto due = header.kind == StepKind::decode && last_sent_ ? *last_sent_ : Clock::now();
  std::array<uint32_t, kMaxLanes> live{};
  const auto received = incoming_.receive(stream_, executor_.residual(), columns * column_bytes,
                                          columns, {live.data(), header.lanes});
  if (!received) return Error{received.error()};
  if (received.value() == Transfer::aborted) return Error{"incoming link aborted"};
  const auto begin = Clock::now();
  health.set_state(proto::StageHealth::RUNNING);

  executor_.run(stream_, {entry.control, columns}, static_cast<int>(header.lanes),
                static_cast<int>(header.width), header.position_class);
  const float* payload = executor_.residual();
  uint32_t sent_columns = columns;
  if (options_.last && (header.flags & kStepBackEveryColumn) == 0) {
    std::array<int, kMaxLanes> valid{};
    for (uint32_t lane = 0; lane < header.lanes; ++lane)
      valid[lane] = entry.lanes[lane].valid_columns;
    payload = executor_.last_columns(stream_, {valid.data(), header.lanes},
                                     static_cast<int>(header.width));
    sent_columns = header.lanes;
  }
  const auto end = Clock::now();
  const Transfer sent = outgoing_.send(stream_, payload, sent_columns * column_bytes, sent_columns,
                                       {live.data(), header.lanes});
  if (sent == Transfer::aborted) return Error{"outgoing link aborted"};
  last_sent_ = Clock::now();
  health.add_step(seconds_between(begin, end), seconds_between(due, begin));
  health.add_traffic(columns * column_bytes, sent_columns * column_bytes);
  health.set_state(proto::StageHealth::READY);
  return {};
}

}  // namespace convoy
