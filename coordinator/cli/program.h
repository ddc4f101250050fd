// The command line program.
#pragma once

namespace convoy {

/// Parses, runs the chosen command, reports errors once. Returns the exit code.
int run_convoy(int argc, char** argv);

}  // namespace convoy
