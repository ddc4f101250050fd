// Rank 0's side of the data plane: the step rings of all workers, and the links out of and back to
// rank 0.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "coordinator/engine/step_planner.h"
#include "coordinator/workers/worker_pool.h"
#include "kernels/device/device.h"
#include "shared/ipc/stage_link.h"
#include "shared/ipc/step_ring.h"
#include "shared/ipc/waiter_release.h"
#include "shared/plan/stage_plan.h"
#include "shared/stage/link_layout.h"

namespace convoy {

/// Creates and owns every shared segment of a run of two or more stages. Main thread, except
/// release_waiters().
class Pipeline {
 public:
  /// Throws StartError when shared memory cannot be had.
  Pipeline(Device& device, const ModelConfig& config, const StagePlan& plan, int spin_iterations,
           LinkChoice choice = {});

  /// What each worker must be given, by rank - 1.
  std::vector<WorkerPool::WorkerLinks> worker_links() const;

  /// Connects rank 0's two ends while the workers connect theirs, before the first step. What the
  /// link to rank 1 became. Throws StartError.
  LinkConnection connect();

  /// Writes the step into every ring. Waits while a ring is full. Error: released by
  /// release_waiters().
  Status publish(const PlannedStep& step);
  /// Entries published so far; the number may wrap.
  uint32_t published() const { return rings_.front().published(); }
  /// Waits until every worker is done with the first `published` entries. Error: released by
  /// release_waiters().
  Status wait_passed(uint32_t published);
  /// Sends the residual of all columns to rank 1, in stream order.
  Status send(Stream& stream, const void* residual, int columns);
  /// Receives each lane's last column from the last rank, in stream order.
  Status receive(Stream& stream, void* last_columns, int lanes);

  /// Compares the headers of what was received, but for the last `in_flight` transfers, which the
  /// stream may not have passed.
  Status check_received(int in_flight);

  /// Every blocked and later call returns an error, and what streams wait for is there. Any thread.
  void release_waiters();

 private:
  Status publish_to(StepRingWriter& ring, const PlannedStep& step);

  Device& device_;
  size_t column_bytes_;
  uint32_t next_transfer_ = 0;
  std::atomic<bool> released_{false};
  std::vector<SharedRegion> ring_regions_;  // by rank - 1
  std::vector<SharedRegion> link_regions_;  // link r: rank r -> r+1; the last one: last rank -> 0
  std::vector<StepRingWriter> rings_;
  std::unique_ptr<StageLinkSender> outgoing_;
  std::unique_ptr<StageLinkReceiver> back_;
  std::deque<LinkExpectation> unchecked_;
  WaiterRelease release_;  // goes first: it uses the links
};

}  // namespace convoy
