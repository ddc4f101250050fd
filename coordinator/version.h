// The program's version, as --version and Hello say it.
#pragma once

namespace convoy {

inline constexpr const char* kVersion = CONVOY_VERSION;

}  // namespace convoy
