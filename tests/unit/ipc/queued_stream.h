// A stream that enqueues, as a CUDA stream does, and a device of that kind: calls return at once,
// the work is done in order by a thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/exit_code.h"
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

  bool idle() override {
    const std::lock_guard lock(mutex_);
    return work_.empty();
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

/// Only what a link asks of a device. `uuid` names it; devices of one process reach each other's
/// exportable memory, unless a fault is set.
class QueuedDevice : public Device {
 public:
  explicit QueuedDevice(std::string uuid = "") : uuid_(std::move(uuid)) {}

  DeviceKind kind() const override { return DeviceKind::cuda; }
  DeviceInfo info() const override {
    DeviceInfo info;
    info.uuid = uuid_;
    return info;
  }
  Buffer allocate(size_t bytes, const std::string&) override {
    return Buffer(
        std::calloc(bytes, 1), bytes,
        [](void* address, size_t, void*) noexcept { std::free(address); }, nullptr);
  }
  Buffer allocate_host(size_t bytes, const std::string& label) override {
    return allocate(bytes, label);
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<QueuedStream>(); }
  std::unique_ptr<Event> make_event() override { check_failed(__FILE__, __LINE__, "unused"); }
  std::unique_ptr<Graph> capture(Stream&, const std::function<void()>&) override {
    check_failed(__FILE__, __LINE__, "unused");
  }
  void bind_thread() override {}
  std::unique_ptr<HostRegistration> register_host(void*, size_t) override {
    return std::make_unique<HostRegistration>();
  }
  OpSet& ops() override { check_failed(__FILE__, __LINE__, "unused"); }
  bool supports_graphs() const override { return false; }

  bool supports_memory_export() const override { return true; }
  Buffer allocate_exportable(size_t bytes, const std::string& label) override {
    if (out_of_memory) throw StartError("no memory for " + label);
    return allocate(bytes + 4096, label);  // room for import_offset
  }
  Result<IpcHandle> export_memory(const Buffer& memory) override {
    if (no_memory_export) return Error{"no export of memory"};
    return handle_of(memory.data());
  }
  Result<std::unique_ptr<ImportedMemory>> import_memory(const IpcHandle& handle) override {
    if (no_peer_access) return Error{"no peer access"};
    return std::unique_ptr<ImportedMemory>(
        std::make_unique<Imported>(named_by<std::byte>(handle) + import_offset));
  }
  Result<std::unique_ptr<IpcEvent>> make_ipc_event() override {
    if (no_events) return Error{"no events for processes"};
    return std::unique_ptr<IpcEvent>(std::make_unique<QueuedEvent>(std::make_shared<EventState>()));
  }
  Result<IpcHandle> export_event(const IpcEvent& event) override {
    if (no_event_export) return Error{"no export of events"};
    return handle_of(&static_cast<const QueuedEvent&>(event).state);
  }
  Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle) override {
    if (no_event_import) return Error{"no import of events"};
    return std::unique_ptr<IpcEvent>(
        std::make_unique<QueuedEvent>(*named_by<const std::shared_ptr<EventState>>(handle)));
  }

  // Faults.
  bool out_of_memory = false;
  bool no_peer_access = false;
  bool no_memory_export = false;
  bool no_events = false;
  bool no_event_export = false;
  bool no_event_import = false;
  size_t import_offset = 0;  // imported memory lies so far from where it should

 private:
  struct EventState {
    std::atomic<uint32_t> recorded{0};
    uint32_t passed = 0;
  };
  struct QueuedEvent : IpcEvent {
    explicit QueuedEvent(std::shared_ptr<EventState> shared) : state(std::move(shared)) {}
    void record(Stream& stream) override { stream.write_value(&state->passed, ++state->recorded); }
    void wait(Stream& stream) override { stream.wait_value(&state->passed, state->recorded); }
    std::shared_ptr<EventState> state;
  };
  struct Imported : ImportedMemory {
    explicit Imported(void* memory) : address(memory) {}
    void* data() const override { return address; }
    void* address;
  };

  static IpcHandle handle_of(const void* address) {
    IpcHandle handle;
    std::memcpy(handle.bytes.data(), &address, sizeof(address));
    return handle;
  }
  template <typename T>
  static T* named_by(const IpcHandle& handle) {
    T* address = nullptr;
    std::memcpy(&address, handle.bytes.data(), sizeof(address));
    return address;
  }

  std::string uuid_;
};

}  // namespace convoy
