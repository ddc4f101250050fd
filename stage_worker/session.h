// One conversation with a coordinator: load a stage, open its links, run its steps, free
// everything.
#pragma once

#include <memory>
#include <optional>

#include "kernels/device/device.h"
#include "shared/control/health_state.h"
#include "shared/control/hold_point.h"
#include "shared/ipc/shared_region.h"
#include "shared/stage/stage_executor.h"
#include "stage_worker/control_thread.h"
#include "stage_worker/kv_ledger.h"
#include "stage_worker/options.h"

namespace convoy {

enum class SessionEnd { conversation_ended, shutdown };

/// Main thread. Everything a stage holds is a member, so destroying the session frees it.
class Session {
 public:
  Session(const WorkerOptions& options, ControlThread& control, HealthState& health);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Follows commands until the conversation ends or the process shall.
  SessionEnd run();

 private:
  void load(const proto::LoadStage& message);
  void serve(const proto::OpenLinks& message, std::vector<UniqueFd> descriptors);
  void describe();
  void move_state();
  void send_error(proto::StageError::Code code, const std::string& message);

  const WorkerOptions& options_;
  ControlThread& control_;
  HealthState& health_;
  std::string device_id_;
  int rank_ = 0;
  int stages_ = 0;
  HoldPoint hold_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::optional<StageExecutor> executor_;
  std::optional<KvLedger> ledger_;  // of the loaded stage
};

}  // namespace convoy
