#include "coordinator/engine/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/exit_code.h"
#include "shared/stage/link_layout.h"

namespace convoy {
namespace {

constexpr int kRingPollMs = 100;
constexpr auto kPassedPoll = std::chrono::microseconds(50);

StepRingOptions ring_options(const StagePlan& plan, int spin_iterations) {
  const StageLimits& limits = plan.limits;
  StepRingOptions options;
  options.max_columns = static_cast<uint32_t>(limits.max_columns());
  options.max_deltas = static_cast<uint32_t>(limits.max_deltas());
  options.spin_iterations = spin_iterations;
  return options;
}

}  // namespace

Pipeline::Pipeline(Device& device, const ModelConfig& config, const StagePlan& plan,
                   int spin_iterations, LinkChoice choice)
    : device_(device),
      column_bytes_(static_cast<size_t>(config.hidden_size) * activation_bytes(device.kind())),
      release_([this] {
        outgoing_->release_waiters();
        back_->release_waiters();
      }) {
  const auto stages = static_cast<int>(plan.stages.size());
  CONVOY_CHECK_OP(stages, >=, 2);
  const StepRingOptions ring = ring_options(plan, spin_iterations);
  for (int rank = 1; rank < stages; ++rank) {
    ring_regions_.push_back(SharedRegion::create(fmt::format("step ring of stage {}", rank),
                                                 StepRingWriter::region_bytes(ring)));
    rings_.emplace_back(ring_regions_.back(), ring);
  }
  const auto options_of = [&](int rank) {
    return link_options(config, plan.limits, device.kind(), {rank, stages}, choice);
  };
  for (int rank = 0; rank < stages; ++rank) {
    const StageLinkOptions options = options_of(rank);
    link_regions_.push_back(
        SharedRegion::create(fmt::format("link from stage {} to {}", rank, (rank + 1) % stages),
                             stage_link_region_bytes(options)));
    format_stage_link(link_regions_.back(), options);
  }
  auto outgoing = StageLinkSender::open(link_regions_.front(), options_of(0), &device);
  auto back = StageLinkReceiver::open(link_regions_.back(), options_of(stages - 1), &device);
  if (!outgoing) throw StartError(outgoing.error());
  if (!back) throw StartError(back.error());
  outgoing_ = std::make_unique<StageLinkSender>(std::move(outgoing).value());
  back_ = std::make_unique<StageLinkReceiver>(std::move(back).value());
}

std::vector<WorkerPool::WorkerLinks> Pipeline::worker_links() const {
  std::vector<WorkerPool::WorkerLinks> links;
  for (size_t i = 0; i < rings_.size(); ++i) {
    links.push_back({.ring_fd = ring_regions_[i].fd(),
                     .incoming_fd = link_regions_[i].fd(),
                     .outgoing_fd = link_regions_[i + 1].fd(),
                     .ring_bytes = ring_regions_[i].bytes(),
                     .incoming_bytes = link_regions_[i].bytes(),
                     .outgoing_bytes = link_regions_[i + 1].bytes()});
  }
  return links;
}

LinkConnection Pipeline::connect() {
  const auto stream = device_.make_stream();
  // The order in which every stage goes: a link's receiver is ready when the stage before it is.
  auto outgoing = outgoing_->connect(*stream);
  if (!outgoing) throw StartError(outgoing.error());
  const auto back = back_->connect(*stream);
  if (!back) throw StartError(back.error());
  return outgoing.value();
}

Status Pipeline::publish(const PlannedStep& step) {
  for (StepRingWriter& ring : rings_) {
    if (Status status = publish_to(ring, step); !status) return status;
  }
  if (step_runs_layers(step.kind)) ++next_transfer_;
  return {};
}

Status Pipeline::wait_passed(uint32_t published) {
  for (const StepRingWriter& ring : rings_) {
    while (static_cast<int32_t>(ring.consumed() - published) < 0) {
      if (released_.load(std::memory_order_acquire)) return Error{"the pipeline was released"};
      std::this_thread::sleep_for(kPassedPoll);
    }
  }
  return {};
}

Status Pipeline::publish_to(StepRingWriter& ring, const PlannedStep& step) {
  for (;;) {
    if (released_.load(std::memory_order_acquire)) return Error{"the pipeline was released"};
    auto slot = ring.begin(kRingPollMs);
    if (!slot) return Error{slot.error()};
    if (!slot.value()) continue;
    const StepEntry& entry = *slot.value();
    entry.header->kind = step.kind;
    entry.header->lanes = static_cast<uint32_t>(step.lanes.size());
    entry.header->width = static_cast<uint32_t>(step.width);
    entry.header->position_class = step.position_class;
    entry.header->delta_count = static_cast<uint32_t>(step.deltas.size());
    entry.header->link_sequence = next_transfer_;
    std::copy(step.lanes.begin(), step.lanes.end(), entry.lanes);
    std::copy(step.control.begin(), step.control.end(), entry.control);
    std::copy(step.deltas.begin(), step.deltas.end(), entry.deltas);
    ring.publish();
    return {};
  }
}

Status Pipeline::send(Stream& stream, const void* residual, int columns) {
  const Transfer sent =
      outgoing_->send(stream, residual, static_cast<size_t>(columns) * column_bytes_,
                      static_cast<uint32_t>(columns), {});
  if (sent == Transfer::aborted) return Error{"the link to stage 1 was released"};
  return {};
}

Status Pipeline::receive(Stream& stream, void* last_columns, int lanes) {
  outgoing_->acquire_ahead(stream);
  const LinkExpectation expected{.transfer = back_->next_transfer(),
                                 .bytes = static_cast<size_t>(lanes) * column_bytes_,
                                 .columns = static_cast<uint32_t>(lanes)};
  const auto received = back_->receive(stream, last_columns, expected.bytes, expected.columns);
  if (!received) return Error{received.error()};
  if (received.value() == Transfer::aborted)
    return Error{"the link from the last stage was released"};
  unchecked_.push_back(expected);
  return {};
}

Status Pipeline::check_received(int in_flight) {
  while (unchecked_.size() > static_cast<size_t>(in_flight)) {
    if (released_.load(std::memory_order_acquire)) return Error{"the pipeline was released"};
    if (Status status = back_->check_received(unchecked_.front()); !status) return status;
    unchecked_.pop_front();
  }
  return {};
}

void Pipeline::release_waiters() {
  released_.store(true, std::memory_order_release);
  release_.begin();
}

}  // namespace convoy
