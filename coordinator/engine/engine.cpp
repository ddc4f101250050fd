#include "coordinator/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/check.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Engine::Engine(const Parts& parts, const LoadProgress& progress)
    : device_(parts.device),
      health_(parts.health),
      hold_(parts.hold),
      limits_(parts.plan.limits),
      stages_(static_cast<int>(parts.plan.stages.size())),
      stream_(parts.device.make_stream()),
      root_(device_, *stream_, parts.checkpoint, limits_, parts.valid_vocab, progress),
      executor_(device_, *stream_, parts.checkpoint, parts.plan.stages.front().layers, limits_,
                progress),
      pages_(limits_.page_groups) {}

// Runs the planned step on rank 0 and passes it on. `ids` has one token per column.
Status Engine::issue(std::span<const int32_t> ids) {
  if (cancelled_()) return Error{"cancelled"};
  hold_.reach(0, step_.kind == StepKind::prefill ? HoldPhase::prefill : HoldPhase::decode, health_,
              cancelled_);
  if (pipeline_ != nullptr) {
    if (Status status = pipeline_->publish(step_); !status) return status;
  }
  health_.set_state(proto::StageHealth::RUNNING);
  const auto begin = Clock::now();
  for (const PageAssignment& delta : step_.deltas)
    executor_.set_page(*stream_, delta.kv_row, delta.block, delta.page);
  root_.embed(*stream_, ids, executor_.residual());
  executor_.run(*stream_, step_.control, step_.lane_count(), step_.width, step_.position_class);
  busy_ += seconds_since(begin);
  health_.set_page_groups_used(static_cast<uint64_t>(pages_.used()));
  if (pipeline_ == nullptr) return {};
  health_.add_traffic(0, static_cast<uint64_t>(step_.columns()) *
                             static_cast<uint64_t>(executor_.hidden()) * sizeof(float));
  return pipeline_->send(*stream_, executor_.residual(), step_.columns(), step_.lane_count());
}

// Brings the last columns of the oldest step in flight to the head.
Status Engine::collect(int lanes) {
  const size_t bytes =
      static_cast<size_t>(lanes) * static_cast<size_t>(executor_.hidden()) * sizeof(float);
  const auto begin = Clock::now();
  if (pipeline_ != nullptr) {
    if (Status status = pipeline_->receive(*stream_, root_.last_columns(), lanes); !status)
      return status;
    health_.add_traffic(bytes, 0);
  } else {
    std::array<int, kMaxLanes> valid{};
    std::transform(step_.lanes.begin(), step_.lanes.end(), valid.begin(),
                   [](const StepLane& lane) { return lane.valid_columns; });
    const float* last =
        executor_.last_columns(*stream_, {valid.data(), static_cast<size_t>(lanes)}, step_.width);
    stream_->copy(root_.last_columns(), last, bytes);
  }
  waited_ += pipeline_ != nullptr ? seconds_since(begin) : 0;
  return {};
}

void Engine::choose(int lanes, std::span<int32_t> next) {
  const auto begin = Clock::now();
  root_.choose(*stream_, lanes, next);
  health_.add_step(std::exchange(busy_, 0) + seconds_since(begin), std::exchange(waited_, 0));
  health_.set_state(proto::StageHealth::READY);
}

Result<int32_t> Engine::prefill(Sequence& sequence, std::span<const int32_t> ids) {
  CONVOY_CHECK(!ids.empty() && sequence.length() == 0,
               "prefill wants a prompt and a fresh sequence");
  CONVOY_CHECK(stages_ == 1 || pipeline_ != nullptr, "prefill before connect()");
  int in_flight = 0;
  while (!ids.empty()) {
    // Each stage works on one chunk: rank 0 runs ahead of the first one's return by as many chunks
    // as there are stages.
    if (in_flight == stages_) {
      if (Status status = collect(1); !status) return Error{status.error()};
      --in_flight;
    }
    const auto chunk =
        ids.first(std::min(ids.size(), static_cast<size_t>(limits_.prefill_chunk_tokens)));
    Sequence* const lane = &sequence;
    const int columns = static_cast<int>(chunk.size());
    if (Status status = plan_step({&lane, 1}, {&columns, 1}, PositionClass::prompt, step_); !status)
      return Error{status.error()};
    if (Status status = issue(chunk); !status) return Error{status.error()};
    ++in_flight;
    ids = ids.subspan(chunk.size());
  }
  for (; in_flight > 0; --in_flight) {
    if (Status status = collect(1); !status) return Error{status.error()};
  }
  int32_t next = -1;
  choose(1, {&next, 1});
  return next;
}

Status Engine::decode(std::span<Sequence* const> sequences, std::span<const int32_t> ids,
                      std::span<int32_t> next) {
  std::array<int, kMaxLanes> columns;
  columns.fill(1);
  if (Status status =
          plan_step(sequences, {columns.data(), sequences.size()}, PositionClass::generated, step_);
      !status)
    return status;
  if (Status status = issue(ids); !status) return status;
  if (Status status = collect(static_cast<int>(sequences.size())); !status) return status;
  choose(static_cast<int>(sequences.size()), next);
  return {};
}

void Engine::copy_logits(int lane, std::span<float> out) {
  CONVOY_CHECK_OP(out.size(), ==, static_cast<size_t>(root_.vocab_size()));
  stream_->copy(out.data(), root_.logits() + ptrdiff_t{lane} * root_.vocab_size(),
                out.size_bytes());
  stream_->synchronize();
}

}  // namespace convoy
