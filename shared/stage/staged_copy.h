// Copies pageable host memory (a mapped file) to a device through pinned buffers.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {

/// Several threads take pieces of a range in turn. Each has two buffers with a stream of its own:
/// it fills one while the other is on its way. Reading a file through a mapping is what takes
/// longest, and one thread alone does not reach what the bus can take. One thread calls it.
class StagedCopy {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  /// `threads` copy, the caller included; 0: as many as pay off on this machine. Throws StartError
  /// when the host has no memory to pin.
  explicit StagedCopy(Device& device, int threads = 0);
  /// Waits for everything.
  ~StagedCopy();
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  /// Device memory from host memory of any alignment. `source` has been read when it returns; the
  /// bytes are there after finish().
  void copy(void* destination, const void* source, size_t bytes);
  void finish();

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Stream> stream;
  };
  struct Copier {
    std::array<Slot, 2> slots;
    size_t next = 0;
    std::thread thread;  // none for the caller's
  };
  struct Job {
    std::byte* destination = nullptr;
    const std::byte* source = nullptr;
    size_t bytes = 0;
  };
  void run(Copier& copier);
  void wait_for_jobs(Copier& copier);

  Device& device_;
  std::vector<std::unique_ptr<Copier>> copiers_;
  Job job_;  // written while no thread runs it
  std::atomic<size_t> next_byte_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t jobs_ = 0;  // under mutex_
  int running_ = 0;    // threads that have not finished the latest job; under mutex_
  bool stop_ = false;  // under mutex_
};

}  // namespace convoy
