#include "shared/ipc/waiter_release.h"

#include <chrono>
#include <utility>

namespace convoy {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(2);

}  // namespace

WaiterRelease::WaiterRelease(std::function<void()> release) : release_(std::move(release)) {}

WaiterRelease::~WaiterRelease() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WaiterRelease::begin() {
  release_();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable() && !ended_) thread_ = std::thread([this] { run(); });
}

void WaiterRelease::run() {
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, kInterval, [this] { return ended_; })) {
    lock.unlock();
    release_();
    lock.lock();
  }
}

}  // namespace convoy
