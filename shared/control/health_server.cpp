#include "shared/control/health_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "base/start_thread.h"
#include "shared/control/frame.h"
#include "shared/control/unix_socket.h"

namespace convoy {
namespace {

constexpr int kRetryMs = 20;

}  // namespace

HealthServer::HealthServer(std::filesystem::path socket_path, const HealthState& state)
    : socket_path_(std::move(socket_path)), state_(state) {
  auto listener = listen_unix(socket_path_);
  if (!listener) throw StartError(listener.error());
  listener_ = std::move(listener).value();
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!stop_) throw StartError("cannot make an eventfd for the health thread");
  thread_ = start_thread("health", [this] { serve(); });
}

HealthServer::~HealthServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
  ::unlink(socket_path_.c_str());
}

void HealthServer::serve() {
  for (;;) {
    pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    const UniqueFd client(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) {
      // Out of descriptors, most likely: the client stays in the backlog, so poll would return at
      // once again and again.
      ::poll(&fds[1], 1, kRetryMs);
      continue;
    }
    // The answer is far smaller than a socket buffer, so it never blocks on a client that does not
    // read.
    const std::string frame = encode_frame(state_.snapshot());
    [[maybe_unused]] const ssize_t sent =
        ::send(client.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  }
}

}  // namespace convoy
