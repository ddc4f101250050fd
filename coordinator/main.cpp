#include "coordinator/cli/program.h"

int main(int argc, char** argv) {
  return convoy::run_convoy(argc, argv);
}
