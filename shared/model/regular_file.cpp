#include "shared/model/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/exit_code.h"

namespace convoy {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

RegularFile open_regular_file(const std::filesystem::path& path) {
  RegularFile file;
  file.path = path;
  // O_NONBLOCK: opening a pipe that nobody writes must not hang. It changes nothing for regular
  // files.
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd) {
    throw StartError(fmt::format("{}: cannot open: {}", path.string(), reason(errno)));
  }
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) {
    throw StartError(fmt::format("{}: cannot stat: {}", path.string(), reason(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw StartError(fmt::format("{}: not a regular file", path.string()));
  }
  file.stamp.bytes = static_cast<uint64_t>(status.st_size);
  file.stamp.inode = status.st_ino;
  file.stamp.modified_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
  return file;
}

std::string read_file_part(const RegularFile& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pread(file.fd.get(), text.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw StartError(fmt::format("{}: cannot read at byte {}: {}", file.path.string(),
                                   offset + done, reason(errno)));
    }
    if (count == 0) {
      throw StartError(
          fmt::format("{}: ends at byte {} while being read; it had {} bytes when opened",
                      file.path.string(), offset + done, file.stamp.bytes));
    }
    done += static_cast<uint64_t>(count);
  }
  return text;
}

std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes) {
  const RegularFile file = open_regular_file(path);
  if (file.stamp.bytes > limit_bytes) {
    throw StartError(fmt::format("{}: {} bytes; allowed: at most {}", path.string(),
                                 file.stamp.bytes, limit_bytes));
  }
  return read_file_part(file, 0, file.stamp.bytes);
}

}  // namespace convoy
