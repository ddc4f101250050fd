#include "base/standard_descriptors.h"
#include "stage_worker/options.h"
#include "stage_worker/worker.h"

int main(int argc, char** argv) {
  convoy::open_standard_descriptors();
  convoy::WorkerOptions options;
  if (const auto exit_code = convoy::parse_worker_options(argc, argv, options)) return *exit_code;
  return convoy::run_stage_worker(options);
}
