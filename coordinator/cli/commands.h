// The commands of `convoy`. Each adds itself to the command line and runs when chosen.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/engine_options.h"

namespace convoy {

/// A command that was added; its flags live as long as it does.
class Command {
 public:
  virtual ~Command() = default;
  /// Does the work after parsing. Returns the exit code; throws FatalError.
  virtual int run() = 0;
  /// Whether errors go to stdout as {"error":…} besides the line on stderr.
  virtual bool json() const { return false; }

  CLI::App* app = nullptr;
  EnvironmentTwins twins;
};

std::unique_ptr<Command> add_generate_command(CLI::App& app);
std::unique_ptr<Command> add_chat_command(CLI::App& app);
std::unique_ptr<Command> add_plan_command(CLI::App& app);
std::unique_ptr<Command> add_bench_command(CLI::App& app);
std::unique_ptr<Command> add_up_command(CLI::App& app);
std::unique_ptr<Command> add_down_command(CLI::App& app);
std::unique_ptr<Command> add_health_command(CLI::App& app);
std::unique_ptr<Command> add_probe_command(CLI::App& app);
/// Hidden: one end of a probed pair.
std::unique_ptr<Command> add_probe_end_command(CLI::App& app);
/// Hidden: measures one device for --split-by speed.
std::unique_ptr<Command> add_measure_device_command(CLI::App& app);
std::unique_ptr<Command> add_state_command(CLI::App& app);
std::unique_ptr<Command> add_tokenize_command(CLI::App& app);
std::unique_ptr<Command> add_detokenize_command(CLI::App& app);

}  // namespace convoy
