#include "coordinator/console/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/exit_code.h"
#include "base/file_io.h"
#include "coordinator/console/output.h"

namespace convoy {

bool is_stdout(const std::string& path) {
  if (path == "-") return true;
  struct stat named {};
  struct stat out {};
  if (::stat(path.c_str(), &named) != 0 || ::fstat(STDOUT_FILENO, &out) != 0) return false;
  // Of a device such as /dev/null it does not matter who else writes to it.
  return named.st_dev == out.st_dev && named.st_ino == out.st_ino &&
         (!S_ISCHR(named.st_mode) || ::isatty(STDOUT_FILENO) == 1);
}

ResultFile::ResultFile(const std::string& flag, const std::string& path)
    : name_(fmt::format("{} {}", flag, path)) {
  if (is_stdout(path)) return;
  there_.reset(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY));
  if (!there_ && errno != ENOENT) refuse(errno);
  struct stat status {};
  if (there_ && (::fstat(there_.get(), &status) != 0 || !S_ISREG(status.st_mode))) return;
  const auto target = follow_links(path);
  if (!target) return;
  target_ = target.value();
  temporary_ = temporary_beside(target_);
  if (there_) return;
  // Permissions alone do not say what a file system takes.
  if (!create_temporary()) refuse(errno);
  ::unlink(temporary_.c_str());
}

void ResultFile::refuse(int error) const {
  throw StartError(fmt::format("{}: cannot be written: {}", name_, std::strerror(error)));
}

UniqueFd ResultFile::create_temporary() const {
  struct stat status {};
  const bool replaces = there_ && ::fstat(there_.get(), &status) == 0;
  UniqueFd file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                       replaces ? S_IRUSR | S_IWUSR : 0666));
  if (file && replaces) ::fchmod(file.get(), status.st_mode & 07777);
  return file;
}

// False: nothing can take the file's place; errno says why.
bool ResultFile::replace(std::string_view text) {
  const UniqueFd file = create_temporary();
  if (!file) return false;
  int error = write_all(file.get(), text);
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  const bool written = error == 0;
  if (written && ::rename(temporary_.c_str(), target_.c_str()) == 0) return true;
  if (written) error = errno;
  ::unlink(temporary_.c_str());
  if (!written) refuse(error);
  errno = error;
  return false;
}

void ResultFile::write(std::string_view text) {
  if (target_.empty() && !there_) return write_result(text);
  if (!target_.empty()) {
    if (replace(text)) return;
    // In a folder that may not be written to, or a mount of its own. Not where the disk is full.
    if (!there_ || errno == ENOSPC || errno == EDQUOT || ::ftruncate(there_.get(), 0) != 0)
      refuse(errno);
  }
  if (const int error = write_all(there_.get(), text); error != 0) refuse(error);
}

}  // namespace convoy
