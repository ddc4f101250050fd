// The CPU device. make_cpu_device (kernels/device/device.h) creates it; this header is for what
// only a CPU device has.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_op_set.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device/device.h"

namespace convoy {

class CpuDevice final : public Device {
 public:
  /// Throws UsageError for a bad option.
  explicit CpuDevice(const CpuDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::cpu; }
  DeviceInfo info() const override;
  /// Anonymous memory, aligned to a page; 0 bytes give an empty Buffer. Refused when the machine
  /// has less available.
  Buffer allocate(size_t bytes, const std::string& label) override;
  Buffer allocate_host(size_t bytes, const std::string& label) override {
    return allocate(bytes, label);
  }
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override;
  /// Ends the process: a CPU stream has nothing to capture.
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override;
  void bind_thread() override {}
  std::unique_ptr<HostRegistration> register_host(void* address, size_t bytes) override;
  OpSet& ops() override { return ops_; }
  bool supports_graphs() const override { return false; }
  bool supports_memory_export() const override { return false; }

  /// Counts for every stream of this device from the next wait on.
  void set_wait_spins(int spins) override { wait_spins_.store(spins, std::memory_order_relaxed); }

  ThreadPool& pool() { return pool_; }

 private:
  cpu::InstructionSet instruction_set_;
  ThreadPool pool_;
  CpuOpSet ops_;
  std::atomic<int> wait_spins_{0};
};

}  // namespace convoy
