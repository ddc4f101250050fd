// Answers health questions from a thread of its own.
#pragma once

#include <filesystem>
#include <thread>

#include "base/unique_fd.h"
#include "shared/control/health_state.h"

namespace convoy {

/// Listens on a Unix socket; whoever connects gets one StageHealth frame. Started before the device
/// is opened, so a process that loads or hangs still answers. The socket file is removed when
/// destroyed.
class HealthServer {
 public:
  /// Throws StartError when the socket cannot be made. `state` must outlive the server.
  HealthServer(std::filesystem::path socket_path, const HealthState& state);
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;
  ~HealthServer();

 private:
  void serve();

  std::filesystem::path socket_path_;
  const HealthState& state_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd
  std::thread thread_;
};

}  // namespace convoy
