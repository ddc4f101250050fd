#include "coordinator/cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <csignal>
#include <iostream>
#include <new>

#include "base/exit_code.h"
#include "base/log.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/number_options.h"
#include "coordinator/console/end_by_signal.h"
#include "coordinator/console/output.h"
#include "coordinator/version.h"
#include "shared/control/log_to_stderr.h"

namespace convoy {
namespace {

void write_json_error(const char* code, const std::string& message) {
  const boost::json::object object{{"error", {{"code", code}, {"message", message}}}};
  try {
    [[maybe_unused]] const WriteResult written =
        write_stdout(boost::json::serialize(object) + "\n");
  } catch (const FatalError&) {
    // Stdout may be what failed; the line on stderr is out.
  }
}

int report(const FatalError& error, bool json) {
  write_stderr(fmt::format("convoy: {}\n", error.what()));
  const bool cancelled = dynamic_cast<const Cancelled*>(&error) != nullptr;
  if (json) write_json_error(cancelled ? "cancelled" : exit_code_name(error.code()), error.what());
  return static_cast<int>(error.code());
}

int run_command(Command& command) {
  try {
    command.twins.apply();
    return command.run();
  } catch (const Cancelled& cancelled) {
    report(cancelled, command.json());
    end_by_signal(cancelled.signal());
  } catch (const FatalError& error) {
    return report(error, command.json());
  } catch (const std::bad_alloc&) {
    return report(StartError("out of memory"), command.json());
  } catch (const std::exception& error) {
    return report(StartError(error.what()), command.json());
  }
}

// CLI11 has said it on stderr already; whoever asked for JSON gets it there too.
int report_usage(const CLI::ParseError& error, int argc, char** argv) {
  const bool json = std::any_of(
      argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
  if (json) write_json_error(exit_code_name(ExitCode::usage), error.what());
  return static_cast<int>(ExitCode::usage);
}

}  // namespace

int run_convoy(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto sink = make_stderr_sink("coordinator");
  set_log_sink(sink.get());

  CLI::App app{
      "Convoy runs a large language model over several devices as a pipeline of processes.",
      "convoy"};
  app.set_version_flag("--version", fmt::format("convoy {}", kVersion));
  app.require_subcommand(1);
  app.footer(
      "convoy COMMAND --help says what each takes. Options with a [CONVOY_…] name can be set in "
      "the environment; a flag wins.\n"
      "Exit codes: 0 done, 1 start-up failed, 2 usage, 3 the engine died, 4 request refused.");
  std::vector<std::unique_ptr<Command>> commands;
  for (const auto add :
       {add_generate_command, add_chat_command, add_plan_command, add_bench_command, add_up_command,
        add_down_command, add_health_command, add_state_command, add_probe_command,
        add_probe_end_command, add_measure_device_command, add_tokenize_command,
        add_detokenize_command}) {
    commands.push_back(add(app));
  }
  read_numbers_as_written(app);
  // CLI11 would only say that a command is missing.
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const auto& command) { return command->app->check_name(argv[1]); })) {
    set_log_sink(nullptr);
    return report(UsageError(fmt::format("'{}' is no command; convoy --help lists them", argv[1])),
                  false);
  }
  int exit_code = static_cast<int>(ExitCode::done);
  try {
    app.parse(argc, argv);
    for (const auto& command : commands) {
      if (command->app->parsed()) exit_code = run_command(*command);
    }
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) exit_code = report_usage(error, argc, argv);
  }
  set_log_sink(nullptr);
  return exit_code;
}

}  // namespace convoy
