// Rank 0's side of the data plane: the step rings of all workers, and the links out of and back to
// rank 0.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "coordinator/engine/step_planner.h"
#include "coordinator/workers/worker_pool.h"
#include "kernels/device/device.h"
#include "shared/ipc/stage_link.h"
#include "shared/ipc/step_ring.h"
#include "shared/plan/stage_plan.h"

namespace convoy {

/// Creates and owns every shared segment of a run of two or more stages. Main thread, except
/// release_waiters().
class Pipeline {
 public:
  /// Throws StartError when shared memory cannot be had.
  Pipeline(Device& device, const ModelConfig& config, const StagePlan& plan, int spin_iterations);

  /// What each worker must be given, by rank - 1.
  std::vector<WorkerPool::WorkerLinks> worker_links() const;

  /// Writes the step into every ring. Waits while a ring is full. Error: released by
  /// release_waiters().
  Status publish(const PlannedStep& step);
  /// Sends the residual of all columns to rank 1, in stream order.
  Status send(Stream& stream, const float* residual, int columns, int lanes);
  /// Receives each lane's last column from the last rank, in stream order.
  Status receive(Stream& stream, float* last_columns, int lanes);

  /// Every blocked and later call returns an error. Any thread.
  void release_waiters();

 private:
  Status publish_to(StepRingWriter& ring, const PlannedStep& step);

  size_t column_bytes_;
  uint32_t next_transfer_ = 0;
  std::atomic<bool> released_{false};
  std::vector<SharedRegion> ring_regions_;  // by rank - 1
  std::vector<SharedRegion> link_regions_;  // link r: rank r -> r+1; the last one: last rank -> 0
  std::vector<StepRingWriter> rings_;
  std::unique_ptr<StageLinkSender> outgoing_;
  std::unique_ptr<StageLinkReceiver> back_;
};

/// Bytes of the segment that stage `rank` of the plan sends through.
uint64_t outgoing_link_bytes(const ModelConfig& config, const StagePlan& plan, int rank);

}  // namespace convoy
