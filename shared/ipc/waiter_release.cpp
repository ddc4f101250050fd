#include "shared/ipc/waiter_release.h"

#include <chrono>
#include <utility>

#include "base/start_thread.h"

namespace convoy {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(2);

}  // namespace

WaiterRelease::WaiterRelease(std::function<void()> release)
    : release_(std::move(release)), thread_(start_thread("release", [this] { run(); })) {}

WaiterRelease::~WaiterRelease() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WaiterRelease::begin() {
  release_();
  {
    const std::lock_guard lock(mutex_);
    begun_ = true;
  }
  changed_.notify_all();
}

void WaiterRelease::run() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return begun_ || ended_; });
  while (!changed_.wait_for(lock, kInterval, [this] { return ended_; })) {
    lock.unlock();
    release_();
    lock.lock();
  }
}

}  // namespace convoy
