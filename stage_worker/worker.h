// The life of a stage worker process.
#pragma once

#include "stage_worker/options.h"

namespace convoy {

/// Runs until the coordinator (spawned) or a shutdown (attached) ends it. Returns the exit code.
int run_stage_worker(const WorkerOptions& options);

}  // namespace convoy
