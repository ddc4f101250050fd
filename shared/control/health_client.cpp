#include "shared/control/health_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>

#include "shared/control/frame.h"
#include "shared/control/unix_socket.h"

namespace convoy {

Result<proto::StageHealth> ask_health(const std::filesystem::path& socket_path, int deadline_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(deadline_ms);
  auto socket = connect_unix(socket_path, deadline_ms);
  if (!socket) return Error{socket.error()};

  FrameDecoder decoder;
  for (;;) {
    auto payload = decoder.next();
    if (!payload) return Error{payload.error()};
    if (payload.value()) {
      proto::StageHealth health;
      if (!health.ParseFromString(*payload.value())) return Error{"malformed health answer"};
      if (health.protocol_version() != kProtocolVersion) {
        return Error{fmt::format("speaks protocol version {}, this program version {}",
                                 health.protocol_version(), kProtocolVersion)};
      }
      return health;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd fd{socket.value().get(), POLLIN, 0};
    const int ready = left <= 0 ? 0 : ::poll(&fd, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Error{fmt::format("not answering within {} ms", deadline_ms)};
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(socket.value().get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Error{"closed without an answer"};
    decoder.feed({bytes.data(), static_cast<size_t>(count)});
  }
}

}  // namespace convoy
