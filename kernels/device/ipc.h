// Device memory and events that processes share. Only where Device::supports_memory_export().
#pragma once

#include <array>
#include <cstddef>

namespace convoy {

class Stream;

/// Names memory or an event of one process to another. Plain bytes: it travels through shared
/// memory. Useless once the owner has released what it names.
struct IpcHandle {
  std::array<std::byte, 64> bytes{};
};

/// What exported memory of `bytes` takes on a CUDA device: whole allocations of 2 MiB, since
/// smaller ones would share their pages, and so their handle's reach, with others.
constexpr size_t exported_bytes(size_t bytes) {
  constexpr size_t kUnit = size_t{2} << 20;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

/// Device memory of another process, mapped here: the same physical device's, or a peer's. Unmaps
/// when destroyed, which must happen before its owner releases it.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  virtual void* data() const = 0;
};

/// An event that one process records and others make their streams wait for.
class IpcEvent {
 public:
  virtual ~IpcEvent() = default;
  /// Only in the process that made it.
  virtual void record(Stream& stream) = 0;
  /// What is enqueued on `stream` from now on comes after the last record() that happened before
  /// this call, in whatever process: the caller makes sure that it is the right one, by a number
  /// that the recording host stored after its record().
  virtual void wait(Stream& stream) = 0;
};

}  // namespace convoy
