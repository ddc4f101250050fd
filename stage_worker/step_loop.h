// Executes step-ring entries in order: receive the residual, run the layers, pass it on.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "base/result.h"
#include "control.pb.h"
#include "kernels/device/device.h"
#include "shared/control/health_state.h"
#include "shared/control/hold_point.h"
#include "shared/ipc/stage_link.h"
#include "shared/ipc/step_ring.h"
#include "shared/ipc/waiter_release.h"
#include "shared/stage/link_layout.h"
#include "shared/stage/stage_executor.h"
#include "shared/stage/step_clock.h"
#include "stage_worker/kv_ledger.h"

namespace convoy {

struct StepLoopOptions {
  int rank = 1;
  int stages = 2;
  bool last = false;  ///< the residual goes back to rank 0: each lane's last live column only
  int spin_iterations = 0;
};

/// Owns the worker's ends of ring and links. Main thread, except release_waiters().
class StepLoop {
 public:
  /// Maps and checks the three regions (ring, incoming, outgoing). Errors name the region.
  static Result<std::unique_ptr<StepLoop>> open(const StepLoopOptions& options,
                                                StageExecutor& executor, Device& device,
                                                Stream& stream, const proto::OpenLinks& sizes,
                                                std::vector<UniqueFd> descriptors);

  /// After a run that ended in an error the stream may still wait for a peer: this releases it.
  ~StepLoop();

  /// Settles both links with the stages beside this one, before run(). What the outgoing link
  /// became.
  Result<LinkConnection> connect();
  /// Called at every `save` entry, in step order.
  void set_state_mover(std::function<void()> move_state) { move_state_ = std::move(move_state); }
  /// Runs until `stopping` (then ok) or until ring or link contents are wrong, or a step does not
  /// agree with the ledger.
  Status run(KvLedger& ledger, HealthState& health, HoldPoint& hold,
             const std::function<bool()>& stopping);
  /// Lets a blocked run() look at `stopping`. Any thread, while run() may run.
  void release_waiters();

 private:
  StepLoop(const StepLoopOptions& options, StageExecutor& executor, Device& device, Stream& stream,
           std::vector<SharedRegion> regions, StepRingReader ring, StageLinkReceiver incoming,
           StageLinkSender outgoing);
  Status execute(const ConstStepEntry& entry, HealthState& health);
  void report(HealthState& health);
  Status check_received(size_t in_flight);

  StepLoopOptions options_;
  StageExecutor& executor_;
  Stream& stream_;
  std::vector<SharedRegion> regions_;
  StepRingReader ring_;
  StageLinkReceiver incoming_;
  StageLinkSender outgoing_;
  StepClock clock_;
  std::function<void()> move_state_;
  WaiterRelease release_;  // goes before the links that it uses
  int in_flight_ = 0;      // steps that were enqueued and not reported
  std::deque<LinkExpectation> unchecked_;
};

}  // namespace convoy
