// Host memory that a stream copies from after the caller has gone on.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {

/// A ring of kSlots pieces of registered host memory. Filling a slot waits until the stream has
/// passed the work that last used it, so this is also what bounds how many steps a host runs ahead.
/// One thread uses it.
class HostStaging {
 public:
  static constexpr int kSlots = 8;

  HostStaging(Device& device, size_t slot_bytes, const char* label);

  /// The next slot, free for the caller.
  std::byte* begin();
  /// Copies `bytes` through the next slot; `from` is read before the call returns.
  void copy(Stream& stream, void* to, const void* from, size_t bytes);
  /// Everything that reads the slot has been enqueued on `stream`.
  void end(Stream& stream);

 private:
  size_t slot_bytes_;
  size_t next_ = 0;
  Buffer memory_;
  std::vector<std::unique_ptr<Event>> passed_;  // per slot
  std::vector<bool> used_;
};

/// Waits on the host, asleep between looks, until the event has passed.
void wait_until_passed(const Event& event);

}  // namespace convoy
