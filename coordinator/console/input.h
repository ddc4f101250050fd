// What comes in on stdin.
#pragma once

#include <string>

namespace convoy {

/// All of stdin. Throws StartError when reading fails: an error is no end.
std::string read_stdin();

}  // namespace convoy
