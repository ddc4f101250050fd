// Sampling options on the command line, over the checkpoint's own defaults.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/sampling/sampling_options.h"

namespace convoy {

/// As typed. Naming temperature, top-k, top-p, min-p or a seed asks for sampling, unless --greedy
/// is there too.
class SamplingFlags {
 public:
  void add_to(CLI::App& command);
  /// generation_config.json of the model, then the flags. A seed that was not given is drawn.
  /// Throws UsageError that names the flag, or StartError for a bad generation_config.json.
  SamplingOptions resolve(const std::filesystem::path& model_directory) const;

 private:
  double temperature_ = 0, top_p_ = 0, min_p_ = 0, presence_ = 0, frequency_ = 0, repetition_ = 0;
  int64_t top_k_ = 0;
  uint64_t seed_ = 0;
  bool greedy_ = false;
  std::vector<std::string> logit_bias_;
  CLI::App* command_ = nullptr;
};

}  // namespace convoy
