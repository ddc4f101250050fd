// Runs one device set through every prompt and decode length.
#pragma once

#include <string>
#include <vector>

#include "coordinator/bench/bench_result.h"
#include "coordinator/run/engine_run.h"

namespace convoy {

struct BenchOptions {
  std::vector<int> prompt_lengths;
  std::vector<int> decode_lengths;  ///< tokens of each lane after the prompt; 0: prefill only
  std::vector<int> lanes = {1};     ///< sequences that decode at the same time
  int warm_up = 1;                  ///< rounds that do not count
  int repetitions = 5;
  bool sampled = false;  ///< tokens are drawn (temperature 0.8, top-k 20, top-p 0.95)
};

/// Loads the model on `options.devices`, measures, unloads. `options.lanes` is the most of
/// `bench.lanes`; prompts run one after another. Prompts are random ids of a fixed seed. Throws
/// FatalError, Cancelled after a signal.
BenchSet run_bench(const RunOptions& options, const Checkpoint& checkpoint,
                   const BenchOptions& bench, ProgressDisplay& display);

}  // namespace convoy
