// A file that a command was asked to write its results to.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace convoy {

/// Whether what is written to `path` comes out of stdout: "-", or a name that stdout's file, pipe
/// or terminal has.
bool is_stdout(const std::string& path);

/// A regular file takes its name when it is complete: a file of that name stands until then. Links
/// are followed and stay. What is no regular file (a pipe, a terminal, stdout) or an open
/// descriptor's (/dev/fd/3) is written to as it is, never replaced; so is a file that nothing can
/// take the place of, after it was emptied.
class ResultFile {
 public:
  /// Makes sure that the file can be written to, and leaves nothing behind. A named pipe waits for
  /// its reader. `flag` ("--json") names it in errors. Throws StartError.
  ResultFile(const std::string& flag, const std::string& path);

  /// Once. Throws StartError: what was there before is there still, unless nothing can take its
  /// place. Where stdout's reader is gone the program ends as by SIGPIPE.
  void write(std::string_view text);

 private:
  [[noreturn]] void refuse(int error) const;
  UniqueFd create_temporary() const;
  bool replace(std::string_view text);

  std::string name_;              // in errors
  std::filesystem::path target_;  // what is replaced; empty: nothing is
  std::filesystem::path temporary_;
  UniqueFd there_;  // what has the name already; neither: stdout
};

}  // namespace convoy
