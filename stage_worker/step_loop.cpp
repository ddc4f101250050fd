#include "stage_worker/step_loop.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/exit_code.h"

namespace convoy {
namespace {

// For a stream to pass what was enqueued once its waits are released.
constexpr auto kReleaseTime = std::chrono::seconds(30);
constexpr int kRingPollMs = 200;  // how often a worker without steps looks whether it should stop

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
                                                           .state_slots = limits.state_slots(),
                                                           .host_pages = limits.host_pages,
                                                           .host_slots = limits.host_slots},
                                                .spin_iterations = options.spin_iterations});
  if (!ring) return Error{ring.error()};
  if (!proto::LinkWish_IsValid(sizes.wish()) || !proto::LinkDoorbell_IsValid(sizes.doorbell()))
    return Error{fmt::format("OpenLinks: wish {} and doorbell {}", static_cast<int>(sizes.wish()),
                             static_cast<int>(sizes.doorbell()))};
  const LinkChoice choice{static_cast<LinkWish>(sizes.wish()),
                          static_cast<LinkDoorbell>(sizes.doorbell())};
  auto incoming = StageLinkReceiver::open(
      regions[1], residual_link_options(executor.config(), limits, device.kind(), choice), &device);
  if (!incoming) return Error{incoming.error()};
  auto outgoing = StageLinkSender::open(
      regions[2],
      options.last
          ? back_link_options(executor.config(), limits, device.kind(), options.stages, choice)
          : residual_link_options(executor.config(), limits, device.kind(), choice),
      &device);
  if (!outgoing) return Error{outgoing.error()};
  return std::unique_ptr<StepLoop>(
      new StepLoop(options, executor, device, stream, std::move(regions), std::move(ring).value(),
                   std::move(incoming).value(), std::move(outgoing).value()));
}

StepLoop::StepLoop(const StepLoopOptions& options, StageExecutor& executor, Device& device,
                   Stream& stream, std::vector<SharedRegion> regions, StepRingReader ring,
                   StageLinkReceiver incoming, StageLinkSender outgoing)
    : options_(options),
      executor_(executor),
      stream_(stream),
      regions_(std::move(regions)),
      ring_(std::move(ring)),
      incoming_(std::move(incoming)),
      outgoing_(std::move(outgoing)),
      clock_(device),
      release_([this] {
        incoming_.release_waiters();
        outgoing_.release_waiters();
      }) {}

StepLoop::~StepLoop() {
  // While a stream waits, nothing that it uses can be given back.
  const auto deadline = std::chrono::steady_clock::now() + kReleaseTime;
  while (!stream_.idle()) {
    release_.begin();
    CONVOY_CHECK(std::chrono::steady_clock::now() < deadline, "the stream does not end");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void StepLoop::release_waiters() {
  release_.begin();
}

Result<LinkConnection> StepLoop::connect() {
  try {
    const auto incoming = incoming_.connect(stream_);
    if (!incoming) return Error{incoming.error()};
    return outgoing_.connect(stream_);
  } catch (const StartError& error) {
    return Error{error.what()};
  }
}

Status StepLoop::run(KvLedger& ledger, HealthState& health, HoldPoint& hold,
                     const std::function<bool()>& stopping) {
  while (!stopping()) {
    auto next = ring_.wait_next(kRingPollMs);
    if (!next) return Error{next.error()};
    report(health);
    if (!next.value()) continue;
    const ConstStepEntry& entry = *next.value();
    const StepKind kind = entry.header->kind;
    if (step_runs_layers(kind)) hold.reach(options_.rank, phase_of(kind), health, stopping);
    if (Status status = ledger.apply(entry); !status) return status;
    health.set_page_groups_used(static_cast<uint64_t>(ledger.used()));
    if (Status status = execute(entry, health); !status) return stopping() ? Status() : status;
    // What the device needs of the entry was staged.
    ring_.release();
  }
  return {};
}

// Tells health of the steps that the device has passed since the last call.
void StepLoop::report(HealthState& health) {
  while (const auto times = clock_.take()) {
    health.add_step(times->busy_s, times->wait_s);
    if (--in_flight_ == 0) health.set_state(proto::StageHealth::READY);
  }
}

Status StepLoop::check_received(size_t in_flight) {
  while (unchecked_.size() > in_flight) {
    if (Status status = incoming_.check_received(unchecked_.front()); !status) return status;
    unchecked_.pop_front();
  }
  return {};
}

Status StepLoop::execute(const ConstStepEntry& entry, HealthState& health) {
  const StepHeader& header = *entry.header;
  const std::span<const BlockTableDelta> deltas{entry.deltas, header.delta_count};
  if (!step_runs_layers(header.kind)) {
    executor_.move(stream_, header.kind, deltas);
    if (header.kind == StepKind::save && move_state_) move_state_();
    return {};
  }
  if (header.kind == StepKind::verify)
    return Error{"step kind verify is not supported by this build"};

  const uint32_t columns = header.lanes * header.width;
  const size_t column_bytes = executor_.column_bytes();
  const LinkExpectation expected{
      .transfer = incoming_.next_transfer(), .bytes = columns * column_bytes, .columns = columns};
  clock_.ready(stream_);
  outgoing_.acquire_ahead(stream_);
  const auto received =
      incoming_.receive(stream_, executor_.residual(), expected.bytes, expected.columns);
  if (!received) return Error{received.error()};
  if (received.value() == Transfer::aborted) return Error{"incoming link aborted"};
  unchecked_.push_back(expected);
  clock_.begin(stream_);
  health.set_state(proto::StageHealth::RUNNING);

  executor_.run(stream_, {.control = {entry.control, columns},
                          .deltas = deltas,
                          .lanes = static_cast<int>(header.lanes),
                          .width = static_cast<int>(header.width),
                          .position_class = header.position_class});
  const void* payload = executor_.residual();
  uint32_t sent_columns = columns;
  if (options_.last && (header.flags & kStepBackEveryColumn) == 0) {
    std::array<int, kMaxLanes> valid{};
    for (uint32_t lane = 0; lane < header.lanes; ++lane)
      valid[lane] = entry.lanes[lane].valid_columns;
    payload = executor_.last_columns(stream_, {valid.data(), header.lanes},
                                     static_cast<int>(header.width));
    sent_columns = header.lanes;
  }
  clock_.end(stream_, header.kind == StepKind::decode);
  ++in_flight_;
  const Transfer sent =
      outgoing_.send(stream_, payload, sent_columns * column_bytes, sent_columns, {});
  if (sent == Transfer::aborted) return Error{"outgoing link aborted"};
  health.add_traffic(columns * column_bytes, sent_columns * column_bytes);
  report(health);
  // The executor lets nobody run further ahead: older transfers have passed.
  return check_received(StageExecutor::kStepsAhead);
}

}  // namespace convoy
