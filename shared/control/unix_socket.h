// Listening on and connecting to Unix sockets by path.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "base/unique_fd.h"

namespace convoy {

/// Whether a socket can have this path; the error names it and what is possible.
Status check_socket_path(const std::filesystem::path& path);

/// Binds and listens; the socket is close-on-exec and non-blocking. Errors name the path; a path
/// longer than 107 bytes is one.
Result<UniqueFd> listen_unix(const std::filesystem::path& path);

/// Connects within `timeout_ms`; the socket is close-on-exec and blocking.
Result<UniqueFd> connect_unix(const std::filesystem::path& path, int timeout_ms);

}  // namespace convoy
