// What `convoy generate` says at the end.
#pragma once

#include <string>
#include <vector>

#include "coordinator/generate/batch.h"
#include "coordinator/generate/generation.h"
#include "coordinator/run/engine_run.h"

namespace convoy {

/// The --json object (docs/commands.md describes it).
std::string generation_json(const GenerationResult& result, const GenerationRequest& request,
                            const EngineRun& run, const std::vector<StageReport>& stages,
                            const RunOptions& options);

/// The lines on stderr: speed, then a table of stages.
std::string generation_summary(const GenerationResult& result, const GenerationRequest& request,
                               const EngineRun& run, const std::vector<StageReport>& stages);

/// One line of --parallel --json, without its end. `line` counts the prompts from 1.
std::string batch_answer_json(size_t line, const BatchAnswer& answer, const BatchPrompt& prompt,
                              const RunOptions& options);
/// The lines on stderr at the end of --parallel.
std::string batch_summary(const BatchCounts& counts, const SamplingOptions& sampling,
                          const EngineRun& run, const std::vector<StageReport>& stages);

}  // namespace convoy
