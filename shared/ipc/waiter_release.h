// Releases blocked ends of links for as long as it takes: a peer that still lives may write its
// word over the value that released ours, and a stream may have many waits before it.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace convoy {

class WaiterRelease {
 public:
  /// `release` calls StageLinkEnd::release_waiters(); it runs on several threads. The thread that
  /// goes on releasing starts here, where it may fail (std::system_error): an end needs none.
  explicit WaiterRelease(std::function<void()> release);
  /// After it no release runs any more.
  ~WaiterRelease();
  WaiterRelease(const WaiterRelease&) = delete;
  WaiterRelease& operator=(const WaiterRelease&) = delete;

  /// Releases now, and from now on every few milliseconds. Any thread, any number of times.
  void begin();

 private:
  void run();

  std::function<void()> release_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace convoy
