#include "shared/control/unix_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace convoy {
namespace {

Result<sockaddr_un> address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& text = path.native();
  if (text.size() >= sizeof(address.sun_path)) {
    return Error{fmt::format(
        "socket path {} has {} bytes, at most {} are possible; choose a shorter --runtime-dir",
        text, text.size(), sizeof(address.sun_path) - 1)};
  }
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  return address;
}

Error failure(const char* what, const std::filesystem::path& path) {
  return Error{fmt::format("{} {}: {}", what, path.native(), std::strerror(errno))};
}

}  // namespace

Status check_socket_path(const std::filesystem::path& path) {
  const auto address = address_of(path);
  if (!address) return Error{address.error()};
  return {};
}

Result<UniqueFd> listen_unix(const std::filesystem::path& path) {
  const auto address = address_of(path);
  if (!address) return Error{address.error()};
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failure("socket for", path);
  constexpr int kBacklog = 16;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.value()), sizeof(sockaddr_un)) !=
          0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return failure("cannot listen on", path);
  }
  return fd;
}

Result<UniqueFd> connect_unix(const std::filesystem::path& path, int timeout_ms) {
  const auto address = address_of(path);
  if (!address) return Error{address.error()};
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return failure("socket for", path);
  // A Unix connect only blocks when the listener's backlog is full; SO_SNDTIMEO bounds that.
  const timeval timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                sizeof(sockaddr_un)) != 0) {
    // The listener lives and accepts nobody.
    if (errno == EAGAIN)
      return Error{fmt::format("{} is not answering within {} ms", path.native(), timeout_ms)};
    return failure("cannot connect to", path);
  }
  return fd;
}

}  // namespace convoy
