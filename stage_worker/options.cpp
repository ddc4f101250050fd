#include "stage_worker/options.h"

#include <CLI/CLI.hpp>

#include "base/exit_code.h"

namespace convoy {

std::optional<int> parse_worker_options(int argc, char** argv, WorkerOptions& options) {
  CLI::App app{
      "convoy-stage-worker: one stage of a Convoy pipeline. The coordinator and `convoy up` start "
      "it."};
  app.set_version_flag("--version", std::string("convoy-stage-worker ") + CONVOY_VERSION);
  app.add_option("--rank", options.rank, "Place in the pipeline, for logs")
      ->check(CLI::Range(1, 63));
  auto* control =
      app.add_option("--control-fd", options.control_fd, "Inherited socket to the coordinator");
  app.add_option("--parent", options.parent_pid, "Pid of the coordinator; the worker ends with it")
      ->needs(control);
  auto* listen = app.add_option("--listen", options.listen,
                                "Wait at this Unix socket for coordinators, one at a time")
                     ->excludes(control);
  app.add_option("--starter-fd", options.starter_fd,
                 "Inherited pipe; the worker ends with it, unless a byte comes first")
      ->needs(listen);
  app.add_option("--health", options.health, "Answer health questions at this Unix socket")
      ->required();
  try {
    app.parse(argc, argv);
    if (options.control_fd < 0 && options.listen.empty())
      throw CLI::RequiredError("--control-fd or --listen");
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return static_cast<int>(code == 0 ? ExitCode::done : ExitCode::usage);
  }
  return std::nullopt;
}

}  // namespace convoy
