#include "base/standard_descriptors.h"
#include "coordinator/cli/program.h"

int main(int argc, char** argv) {
  convoy::open_standard_descriptors();
  return convoy::run_convoy(argc, argv);
}
