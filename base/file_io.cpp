#include "base/file_io.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace convoy {

Result<size_t> read_at(int fd, void* data, size_t bytes, uint64_t offset) {
  auto* const to = static_cast<std::byte*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{std::strerror(errno)};
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

Status write_at(int fd, const void* data, size_t bytes, uint64_t offset) {
  const auto* const from = static_cast<const std::byte*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t put = ::pwrite(fd, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Error{std::strerror(errno)};
    done += static_cast<size_t>(put);
  }
  return {};
}

}  // namespace convoy
