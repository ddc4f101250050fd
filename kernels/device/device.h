// What a device offers to the layers above: memory, streams, the words that links wait on, and its
// operations.
//
// CPU and CUDA devices implement the same interface. On a CPU device a stream runs in order on the
// thread that calls it: every call returns when its work is done, and a wait blocks the caller. On
// a CUDA device calls enqueue. Nothing above kernels/ may assume either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/device/buffer.h"
#include "kernels/device/ipc.h"

namespace convoy {

class OpSet;

enum class DeviceKind { cpu, cuda };
/// "cpu" or "cuda".
const char* device_kind_name(DeviceKind kind);

struct DeviceInfo {
  DeviceKind kind = DeviceKind::cpu;
  std::string id;            ///< as a person names it: "cpu", "cuda:0"
  std::string name;          ///< the processor's or card's name
  std::string uuid;          ///< empty on a CPU device
  std::string pci_id;        ///< empty on a CPU device
  std::string architecture;  ///< "avx512", "avx2", "scalar", "sm_90"
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  int threads = 0;  ///< CPU devices: threads that compute
};

/// Work in order on one device. Not thread-safe: one thread uses a stream.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Copies `bytes` between any two of: device memory, registered host memory. The ranges must not
  /// overlap.
  virtual void copy(void* destination, const void* source, size_t bytes) = 0;
  virtual void fill_zero(void* destination, size_t bytes) = 0;
  /// Waits until int32(*word - value) >= 0 (a monotone counter that may wrap). `word` lies in
  /// registered host memory and may be written by another process. Everything ordered before the
  /// matching write is visible afterwards.
  virtual void wait_value(uint32_t* word, uint32_t value) = 0;
  /// Writes `value` after everything enqueued before it is visible to other devices and processes,
  /// and wakes waiters.
  virtual void write_value(uint32_t* word, uint32_t value) = 0;
  /// copy() and write_value(), in one go where that is faster.
  virtual void copy_then_write(void* destination, const void* source, size_t bytes, uint32_t* word,
                               uint32_t value) {
    copy(destination, source, bytes);
    write_value(word, value);
  }
  /// Returns when everything enqueued so far is done.
  virtual void synchronize() = 0;
  /// Whether everything enqueued so far is done. Never waits.
  virtual bool idle() = 0;
};

/// A moment in the order of a stream: passed once everything enqueued before record() is done.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  /// False before the first record(). Never waits.
  virtual bool passed() const = 0;
  /// Milliseconds of the device's time from `earlier` to this one; both recorded on streams of one
  /// device, and passed.
  virtual double ms_since(const Event& earlier) const = 0;
};

/// Work that was captured once and can be enqueued again and again. Holds the addresses that it was
/// captured with: they must outlive it.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

/// A mapping that the device may copy from and to, and whose words streams may wait on. Ends when
/// destroyed.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// Reads the free bytes anew at every call.
  virtual DeviceInfo info() const = 0;

  /// Allocates zeroed memory, aligned to 256 bytes. `label` names it in errors. Throws StartError
  /// when it does not fit.
  virtual Buffer allocate(size_t bytes, const std::string& label) = 0;
  /// Zeroed host memory that streams copy from and to without staging, and whose words they may
  /// wait on. The device may read and write it directly at the same address.
  virtual Buffer allocate_host(size_t bytes, const std::string& label) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  /// Calls `work`, which enqueues on `stream`, and keeps what it enqueued instead of running it.
  /// Only where supports_graphs(). The graph is uploaded: its launches never wait on the host.
  virtual std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) = 0;
  /// Binds the calling thread to this device. Every thread calls it once before it calls anything
  /// else of the device or its streams.
  virtual void bind_thread() = 0;
  /// Makes [address, address+bytes) usable by copies and words. The memory must outlive the result.
  virtual std::unique_ptr<HostRegistration> register_host(void* address, size_t bytes) = 0;

  /// The operations of this device (kernels/ops).
  virtual OpSet& ops() = 0;

  /// How often a stream that waits on the host looks at a word before it sleeps; 0 at the start.
  /// More than 0 pays only where no more processes than cores wait for each other. No effect on
  /// devices whose streams wait by themselves.
  virtual void set_wait_spins(int spins) { (void)spins; }

  /// Whether work on a stream can be captured once and replayed.
  virtual bool supports_graphs() const = 0;
  /// Whether device memory and events can be shared with other processes (peer and local links).
  /// Without it the calls below end the process.
  virtual bool supports_memory_export() const = 0;
  /// As allocate(), for export_memory(): nothing else lies in the pages that are exported.
  virtual Buffer allocate_exportable(size_t bytes, const std::string& label);
  /// `memory` comes from allocate_exportable(). These calls return an error where the system
  /// refuses what the device could do (containers, WSL).
  virtual Result<IpcHandle> export_memory(const Buffer& memory);
  /// Memory that another process exported. An error where this device cannot reach it.
  virtual Result<std::unique_ptr<ImportedMemory>> import_memory(const IpcHandle& handle);
  virtual Result<std::unique_ptr<IpcEvent>> make_ipc_event();
  /// `event` comes from make_ipc_event().
  virtual Result<IpcHandle> export_event(const IpcEvent& event);
  /// An event that another process exported.
  virtual Result<std::unique_ptr<IpcEvent>> import_ipc_event(const IpcHandle& handle);
};

struct CpuDeviceOptions {
  int threads = 0;  ///< threads that compute, the caller included; 0: one per physical core
  /// Forces an instruction set for tests: "avx512", "avx2", "scalar"; empty: the best the processor
  /// has.
  std::string instruction_set;
};
/// Throws UsageError for a bad option.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

/// Physical cores this process may run on (hyper-threads counted once), at least 1.
int physical_cores();

}  // namespace convoy
