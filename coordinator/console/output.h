// Text to stdout and stderr, and what happens when nobody reads it.
#pragma once

#include <string_view>

namespace convoy {

/// Writes all of `text`, waiting where `fd` does not block. 0, or the errno that ended it.
int write_all(int fd, std::string_view text);

enum class WriteResult { written, closed };

/// Writes all of `text` to stdout at once. `closed`: the reader is gone (EPIPE). Throws StartError
/// on any other error, such as a full disk.
[[nodiscard]] WriteResult write_stdout(std::string_view text);

/// stdout of a run that stops: nobody waits for ever for a reader that does not read.
class RunOutput {
 public:
  /// `stop_fd` is readable once the run has to stop; it outlives the output.
  explicit RunOutput(int stop_fd) : stop_fd_(stop_fd) {}
  /// As write_stdout(). False: the reader is gone, or the run has to stop and the reader took
  /// nothing for a second. It stays false then, and nothing more is written.
  bool write(std::string_view text);
  bool reader_gone() const { return ended_ && !stalled_; }

 private:
  bool wait_for_reader();

  int stop_fd_;
  bool ended_ = false;
  bool stalled_ = false;
};

/// Writes what a command was asked for. Where its reader is gone the program ends as by SIGPIPE.
void write_result(std::string_view text);

/// Writes a message to stderr. What cannot be written is dropped: a message never changes what the
/// program does.
void write_stderr(std::string_view text);

}  // namespace convoy
