#include "shared/stage/staged_copy.h"

#include <algorithm>
#include <cstring>

#include "base/exit_code.h"
#include "base/log.h"
#include "base/start_thread.h"

namespace convoy {
namespace {

// Measured on a PCIe 5.0 slot from the page cache, pieces of 4 MiB: 8, 28, 47 and 48 GB/s with 1,
// 4, 8 and 12 threads. Larger pieces leave the cache before the device reads them: 18 GB/s with 4.
constexpr int kMostThreads = 8;

int useful_threads() {
  return std::clamp(physical_cores() / 2, 1, kMostThreads);
}

}  // namespace

StagedCopy::StagedCopy(Device& device, int threads) : device_(device) {
  const int count = threads > 0 ? threads : useful_threads();
  for (int i = 0; i < count; ++i) {
    auto copier = std::make_unique<Copier>();
    for (Slot& slot : copier->slots) {
      slot.memory = device_.allocate_host(kPieceBytes, "staged weights");
      slot.stream = device_.make_stream();
    }
    copiers_.push_back(std::move(copier));
  }
  for (size_t i = 1; i < copiers_.size(); ++i) {
    Copier& copier = *copiers_[i];
    try {
      copier.thread = start_thread("convoy-load", [this, &copier] { wait_for_jobs(copier); });
    } catch (const StartError& error) {
      log(LogLevel::warning, std::string(error.what()) + "; weights load more slowly");
      copiers_.resize(i);
    }
  }
}

StagedCopy::~StagedCopy() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (const auto& copier : copiers_) {
    if (copier->thread.joinable()) copier->thread.join();
  }
  finish();
}

void StagedCopy::copy(void* destination, const void* source, size_t bytes) {
  job_ = {static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes};
  next_byte_.store(0, std::memory_order_relaxed);
  // A single piece is done before another thread is awake.
  const bool shared = bytes > kPieceBytes && copiers_.size() > 1;
  if (shared) {
    {
      const std::lock_guard lock(mutex_);
      ++jobs_;
      running_ = static_cast<int>(copiers_.size()) - 1;
    }
    changed_.notify_all();
  }
  run(*copiers_.front());
  if (shared) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }
}

void StagedCopy::finish() {
  for (const auto& copier : copiers_) {
    for (const Slot& slot : copier->slots) slot.stream->synchronize();
  }
}

void StagedCopy::run(Copier& copier) {
  for (;;) {
    const size_t at = next_byte_.fetch_add(kPieceBytes, std::memory_order_relaxed);
    if (at >= job_.bytes) return;
    const size_t bytes = std::min(kPieceBytes, job_.bytes - at);
    Slot& slot = copier.slots[copier.next];
    copier.next = (copier.next + 1) % copier.slots.size();
    slot.stream->synchronize();  // what was in the buffer has left
    std::memcpy(slot.memory.data(), job_.source + at, bytes);
    slot.stream->copy(job_.destination + at, slot.memory.data(), bytes);
  }
}

void StagedCopy::wait_for_jobs(Copier& copier) {
  device_.bind_thread();
  uint64_t done = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || jobs_ != done; });
      if (stop_) return;
      done = jobs_;
    }
    run(copier);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace convoy
