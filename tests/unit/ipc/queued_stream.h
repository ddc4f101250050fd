// A stream that enqueues, as a CUDA stream does, and a device of that kind: calls return at once,
// the work is done in order by a thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "kernels/device/device.h"
#include "tests/unit/ipc/inline_stream.h"

namespace convoy {

class QueuedStream : public Stream {
 public:
  QueuedStream() : thread_([this] { run(); }) {}
  ~QueuedStream() override {
    enqueue(nullptr);
    thread_.join();
  }

  void copy(void* destination, const void* source, size_t bytes) override {
    enqueue([=, this] { inline_.copy(destination, source, bytes); });
  }
  void fill_zero(void* destination, size_t bytes) override {
    enqueue([=, this] { inline_.fill_zero(destination, bytes); });
  }
  void wait_value(uint32_t* word, uint32_t value) override {
    enqueue([=, this] { inline_.wait_value(word, value); });
  }
  void write_value(uint32_t* word, uint32_t value) override {
    enqueue([=, this] { inline_.write_value(word, value); });
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty(); });
  }

 private:
  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> work = work_.front();
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
      work_.pop_front();  // only now: synchronize() waits for it
      changed_.notify_all();
    }
  }

  InlineStream inline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

/// Only what a link asks of a device.
class QueuedDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  DeviceInfo info() const override { return {}; }
  Buffer allocate(size_t, const std::string&) override {
    check_failed(__FILE__, __LINE__, "unused");
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<QueuedStream>(); }
  std::unique_ptr<HostRegistration> register_host(void*, size_t) override {
    return std::make_unique<HostRegistration>();
  }
  OpSet& ops() override { check_failed(__FILE__, __LINE__, "unused"); }
  bool supports_graphs() const override { return false; }
  bool supports_memory_export() const override { return false; }
};

}  // namespace convoy
