// Text to stdout and stderr, and what happens when nobody reads it.
#pragma once

#include <string_view>

namespace convoy {

enum class WriteResult { written, closed };

/// Writes all of `text` to stdout at once. `closed`: the reader is gone (EPIPE). Throws StartError
/// on any other error, such as a full disk.
[[nodiscard]] WriteResult write_stdout(std::string_view text);

/// Writes what a command was asked for. Where its reader is gone the program ends as by SIGPIPE.
void write_result(std::string_view text);

/// Writes a message to stderr. What cannot be written is dropped: a message never changes what the
/// program does.
void write_stderr(std::string_view text);

}  // namespace convoy
