// The message that makes a worker load its stage.
#pragma once

#include <filesystem>
#include <string>

#include "control.pb.h"
#include "shared/model/checkpoint.h"
#include "shared/plan/stage_plan.h"

namespace convoy {

/// What to tell workers besides the plan.
struct WorkerSettings {
  std::filesystem::path model_directory;
  LoadFormat load_format = LoadFormat::automatic;
  int threads = 0;
  bool cuda_graphs = true;
  std::string log_level;
  std::string test_hold;
};

/// For the worker of `rank`, from 1 on.
proto::ToWorker load_stage(const StagePlan& plan, size_t rank, const WorkerSettings& settings);

}  // namespace convoy
