#include "stage_worker/worker.h"

#include <fmt/format.h>

#include <csignal>

#include "base/exit_code.h"
#include "base/log.h"
#include "shared/control/health_server.h"
#include "shared/control/log_to_stderr.h"
#include "shared/control/parent_process.h"
#include "stage_worker/control_thread.h"
#include "stage_worker/session.h"

namespace convoy {
namespace {

void serve(const WorkerOptions& options, HealthState& health) {
  ControlThread control(options, health);
  const bool attached = options.control_fd < 0;
  for (;;) {
    proto::StageHealth description;
    description.set_rank(static_cast<uint32_t>(options.rank));
    health.reset(attached ? proto::StageHealth::WAITING : proto::StageHealth::STARTING);
    health.set_description(description);
    if (Session(options, control, health).run() == SessionEnd::shutdown) break;
    control.ready_for_next();
  }
  health.set_state(proto::StageHealth::STOPPING);
}

}  // namespace

int run_stage_worker(const WorkerOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  if (options.parent_pid != 0 && !tie_to_parent(options.parent_pid))
    return static_cast<int>(ExitCode::engine_died);
  const auto sink = make_stderr_sink(fmt::format("stage {}", options.rank));
  set_log_sink(sink.get());
  int exit_code = static_cast<int>(ExitCode::done);
  try {
    HealthState health;
    const HealthServer server(options.health, health);
    serve(options, health);
  } catch (const FatalError& error) {
    log(LogLevel::error, error.what());
    exit_code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    exit_code = static_cast<int>(ExitCode::start_failed);
  }
  set_log_sink(nullptr);
  return exit_code;
}

}  // namespace convoy
