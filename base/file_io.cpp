#include "base/file_io.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

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

namespace {

// Links there stand for open descriptors, whatever name they show.
bool lies_in_proc(const std::filesystem::path& file) {
  struct statfs system {};
  return ::statfs(file.parent_path().c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

}  // namespace

Result<std::filesystem::path> follow_links(const std::filesystem::path& path) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  std::filesystem::path target = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    std::error_code error;
    const std::filesystem::path link = std::filesystem::read_symlink(target, error);
    if (error) return target;
    if (lies_in_proc(target)) return Error{"the name of an open descriptor"};
    target = target.parent_path() / link;
  }
  return Error{std::strerror(ELOOP)};
}

std::filesystem::path temporary_beside(const std::filesystem::path& target) {
  return target.native() + "." + std::to_string(::getpid()) + ".part";
}

}  // namespace convoy
