#include "coordinator/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/check.h"

namespace convoy {

Engine::Engine(const Parts& parts, const LoadProgress& progress)
    : device_(parts.device),
      health_(parts.health),
      hold_(parts.hold),
      limits_(parts.plan.limits),
      stages_(static_cast<int>(parts.plan.stages.size())),
      runs_ahead_(parts.run_ahead || parts.device.kind() != DeviceKind::cpu),
      stream_(parts.device.make_stream()),
      root_(device_, *stream_, parts.checkpoint, limits_, parts.valid_vocab, progress),
      executor_(device_, *stream_, parts.checkpoint, parts.plan.stages.front().layers, limits_,
                progress),
      pages_(limits_.page_groups),
      issue_clock_(device_),
      collect_clock_(device_) {}

Engine::~Engine() {
  // While a stream has work, nothing that it uses can be given back. Steps that ran ahead of the
  // end of a text may be waiting for other stages.
  while (!stream_->idle()) {
    if (pipeline_ != nullptr) pipeline_->release_waiters();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engine::prepare(bool graphs) {
  executor_.prepare(*stream_, graphs);
  root_.prepare(*stream_);
}

// Runs the planned step on rank 0 and passes it on. `ids` has one token per column; none: what the
// step before chose.
Status Engine::issue(std::span<const int32_t> ids) {
  if (cancelled_()) return Error{"cancelled"};
  hold_.reach(0, step_.kind == StepKind::prefill ? HoldPhase::prefill : HoldPhase::decode, health_,
              cancelled_);
  if (pipeline_ != nullptr) {
    if (Status status = pipeline_->publish(step_); !status) return status;
  }
  health_.set_state(proto::StageHealth::RUNNING);
  issue_clock_.ready(*stream_);
  issue_clock_.begin(*stream_);
  if (ids.empty()) {
    root_.embed_chosen(*stream_, step_.lane_count(), executor_.residual());
  } else {
    root_.embed(*stream_, ids, executor_.residual());
  }
  executor_.run(*stream_, {.control = step_.control,
                           .deltas = step_.deltas,
                           .lanes = step_.lane_count(),
                           .width = step_.width,
                           .position_class = step_.position_class});
  issue_clock_.end(*stream_, false);
  health_.set_page_groups_used(static_cast<uint64_t>(pages_.used()));
  if (pipeline_ == nullptr) return {};
  health_.add_traffic(0, static_cast<uint64_t>(step_.columns()) * executor_.column_bytes());
  return pipeline_->send(*stream_, executor_.residual(), step_.columns());
}

// Brings the last columns of the oldest step in flight to the head. `last`: choose() follows.
Status Engine::collect(int lanes, bool last) {
  const size_t bytes = static_cast<size_t>(lanes) * executor_.column_bytes();
  collect_clock_.ready(*stream_);
  if (pipeline_ != nullptr) {
    if (Status status = pipeline_->receive(*stream_, root_.last_columns(), lanes); !status)
      return status;
    // Older ones have passed: the executor lets nobody run further ahead.
    if (Status status = pipeline_->check_received(StageExecutor::kStepsAhead + stages_); !status)
      return status;
    health_.add_traffic(bytes, 0);
  } else {
    std::array<int, kMaxLanes> valid{};
    std::transform(step_.lanes.begin(), step_.lanes.end(), valid.begin(),
                   [](const StepLane& lane) { return lane.valid_columns; });
    const void* columns =
        executor_.last_columns(*stream_, {valid.data(), static_cast<size_t>(lanes)}, step_.width);
    stream_->copy(root_.last_columns(), columns, bytes);
  }
  collect_clock_.begin(*stream_);
  if (!last) collect_clock_.end(*stream_, false);
  take_times();
  return {};
}

// What is not passed yet is taken later.
void Engine::take_times() {
  while (const auto times = issue_clock_.take()) busy_ += times->busy_s;
  while (const auto times = collect_clock_.take()) {
    busy_ += times->busy_s;
    if (pipeline_ != nullptr) waited_ += times->wait_s;
  }
}

void Engine::choose(int lanes, std::span<const DrawRule> rules) {
  choices_.push_back(root_.choose(*stream_, lanes, rules));
  collect_clock_.end(*stream_, false);
}

Status Engine::wait_chosen(std::span<int32_t> next) {
  root_.wait_chosen(choices_.front(), next);
  choices_.pop_front();
  take_times();
  health_.add_step(std::exchange(busy_, 0), std::exchange(waited_, 0));
  if (choices_.empty()) health_.set_state(proto::StageHealth::READY);
  return pipeline_ != nullptr ? pipeline_->check_received(static_cast<int>(choices_.size()))
                              : Status();
}

Result<int32_t> Engine::prefill(Sequence& sequence, std::span<const int32_t> ids,
                                std::span<const StateImage> images, const DrawRule& rule,
                                const std::function<bool()>& stop) {
  const auto end = static_cast<int>(ids.size());
  CONVOY_CHECK(sequence.length() < end && sequence.length() % kPageTokens == 0,
               "prefill wants whole pages and a token beyond them");
  CONVOY_CHECK(stages_ == 1 || pipeline_ != nullptr, "prefill before connect()");
  choices_.clear();
  int in_flight = 0;
  bool stopped = false;
  while (sequence.length() < end && !(stopped = stop && stop())) {
    // Each stage works on one chunk: rank 0 runs ahead of the first one's return by as many chunks
    // as there are stages.
    if (in_flight == stages_) {
      if (Status status = collect(1, false); !status) return Error{status.error()};
      --in_flight;
    }
    const int begin = sequence.length();
    int columns = std::min(end - begin, limits_.prefill_chunk_tokens);
    int32_t image = -1;
    if (!images.empty() && images.front().tokens <= begin + columns) {
      columns = images.front().tokens - begin;
      image = images.front().slot;
      images = images.subspan(1);
    }
    // What follows reads the state where it was left; after the last column that would be for long.
    const bool last = begin + columns == end;
    Sequence* const lane = &sequence;
    if (Status status =
            plan_step({&lane, 1}, {&columns, 1}, PositionClass::prompt, step_, last ? -1 : image);
        !status)
      return Error{status.error()};
    if (Status status =
            issue(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(columns)));
        !status)
      return Error{status.error()};
    ++in_flight;
    if (last && image >= 0) {
      const CacheChange copy{CacheChange::Kind::copy_state, sequence.state_slot(), image};
      if (Status status = apply({&copy, 1}); !status) return Error{status.error()};
    }
  }
  for (; in_flight > 0; --in_flight) {
    if (Status status = collect(1, in_flight == 1 && !stopped); !status)
      return Error{status.error()};
  }
  if (stopped) {
    health_.add_step(std::exchange(busy_, 0), std::exchange(waited_, 0));
    health_.set_state(proto::StageHealth::READY);
    return kStopped;
  }
  int32_t next = -1;
  choose(1, {&rule, 1});
  if (Status status = wait_chosen({&next, 1}); !status) return Error{status.error()};
  return next;
}

Status Engine::decode(std::span<Sequence* const> sequences, std::span<const int32_t> ids,
                      std::span<int32_t> next, std::span<const DrawRule> rules) {
  CONVOY_CHECK_OP(ids.size(), ==, sequences.size());
  choices_.clear();
  if (Status status = decode_ahead(sequences, ids, rules); !status) return status;
  return wait_chosen(next);
}

Status Engine::wait_decoded(std::span<int32_t> next) {
  CONVOY_CHECK(!choices_.empty(), "wait_decoded() without decode_ahead()");
  return wait_chosen(next);
}

Status Engine::decode_ahead(std::span<Sequence* const> sequences, std::span<const int32_t> ids,
                            std::span<const DrawRule> rules) {
  CONVOY_CHECK_OP(choices_.size(), <, kDecodeAhead);
  CONVOY_CHECK(rules.empty() || rules.size() == sequences.size(), "a rule for each sequence");
  std::array<int, kMaxLanes> columns;
  columns.fill(1);
  if (Status status =
          plan_step(sequences, {columns.data(), sequences.size()}, PositionClass::generated, step_);
      !status)
    return status;
  if (Status status = issue(ids); !status) return status;
  if (Status status = collect(static_cast<int>(sequences.size()), true); !status) return status;
  choose(static_cast<int>(sequences.size()), rules);
  return {};
}

namespace {

SequencePlace place_of(const Sequence& sequence) {
  return {.pages = sequence.page_groups(),
          .state_slot = sequence.state_slot(),
          .tokens = static_cast<uint32_t>(sequence.length())};
}

}  // namespace

Status Engine::publish_save() {
  if (pipeline_ == nullptr) return {};
  PlannedStep save;
  save.kind = StepKind::save;
  return pipeline_->publish(save);
}

// In as many entries as they need.
Status Engine::publish_deltas(StepKind kind, std::span<const BlockTableDelta> deltas) {
  const auto most = static_cast<size_t>(limits_.max_deltas());
  for (size_t at = 0; at < deltas.size(); at += most) {
    const auto part = deltas.subspan(at, std::min(most, deltas.size() - at));
    PlannedStep step;
    step.kind = kind;
    step.deltas.assign(part.begin(), part.end());
    if (pipeline_ != nullptr) {
      if (Status status = pipeline_->publish(step); !status) return status;
    }
    executor_.move(*stream_, kind, part);
  }
  return {};
}

Status Engine::adopt(Sequence& sequence, const PrefixHit& prefix) {
  std::vector<BlockTableDelta> deltas;
  sequence.adopt(prefix.pages, prefix.state_slot, deltas);
  return publish_deltas(StepKind::tables, deltas);
}

namespace {

StepKind kind_of(CacheChange::Kind kind) {
  switch (kind) {
    case CacheChange::Kind::keep:
      return StepKind::keep_pages;
    case CacheChange::Kind::drop:
      return StepKind::drop_pages;
    case CacheChange::Kind::copy_page:
      return StepKind::copy_pages;
    case CacheChange::Kind::copy_state:
      break;
  }
  return StepKind::copy_states;
}

}  // namespace

Status Engine::apply(std::span<const CacheChange> changes) {
  while (!changes.empty()) {
    const CacheChange::Kind kind = changes.front().kind;
    std::vector<BlockTableDelta> deltas;
    for (const CacheChange& change : changes) {
      if (change.kind != kind) break;
      deltas.push_back({0, change.from, change.to});
    }
    if (Status status = publish_deltas(kind_of(kind), deltas); !status) return status;
    changes = changes.subspan(deltas.size());
  }
  return {};
}

Result<std::vector<uint64_t>> Engine::save_state(const Sequence& sequence, int fd,
                                                 const StateLayout& layout) {
  CONVOY_CHECK(choices_.empty(), "a state is saved while steps are ahead of it");
  if (Status status = publish_save(); !status) return Error{status.error()};
  return executor_.save_state(*stream_, place_of(sequence), fd, layout);
}

Status Engine::take_pages(Sequence& sequence, int tokens) {
  CONVOY_CHECK_OP(sequence.length(), ==, 0);
  std::vector<BlockTableDelta> deltas;
  if (const auto span = sequence.extend(tokens, deltas); !span) return Error{span.error()};
  return publish_deltas(StepKind::tables, deltas);
}

Status Engine::load_state(const Sequence& sequence, int fd, const StateLayout& layout) {
  if (Status status = publish_save(); !status) return status;
  return executor_.load_state(*stream_, place_of(sequence), fd, layout);
}

void Engine::copy_logits(int lane, std::span<float> out) {
  CONVOY_CHECK_OP(out.size(), ==, static_cast<size_t>(root_.vocab_size()));
  stream_->copy(out.data(), root_.logits() + ptrdiff_t{lane} * root_.vocab_size(),
                out.size_bytes());
  stream_->synchronize();
}

}  // namespace convoy
