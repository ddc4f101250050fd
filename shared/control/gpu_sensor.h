// What the NVIDIA driver says of a card that CUDA does not: clocks, and
// free memory without opening the card.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace convoy {

/// The management library (libnvidia-ml.so.1), opened when asked for: there may be none.
class GpuSensor {
 public:
  /// Null where the library is missing or does not start.
  static std::unique_ptr<GpuSensor> open();
  ~GpuSensor();
  GpuSensor(const GpuSensor&) = delete;
  GpuSensor& operator=(const GpuSensor&) = delete;

  /// MHz of the multiprocessors of the card "GPU-<uuid>" right now; nothing where the driver does
  /// not tell. Any thread.
  std::optional<int> sm_clock_mhz(const std::string& uuid) const;
  /// Free bytes of the card's memory right now; nothing where the driver does not tell. Any thread.
  std::optional<uint64_t> free_bytes(const std::string& uuid) const;

 private:
  struct Library;
  explicit GpuSensor(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

/// The clocks that one card had over some time.
struct ClockRange {
  std::string uuid;
  int least_mhz = 0;
  int most_mhz = 0;
};

/// Looks at the clocks of some cards every few milliseconds until stop(), on a thread of its own.
class ClockWatch {
 public:
  /// `sensor` may be null: then there is nothing to see. It outlives this.
  ClockWatch(const GpuSensor* sensor, std::vector<std::string> uuids);
  ~ClockWatch();
  ClockWatch(const ClockWatch&) = delete;
  ClockWatch& operator=(const ClockWatch&) = delete;

  /// A range per card that answered.
  std::vector<ClockRange> stop();

 private:
  void watch();

  const GpuSensor* sensor_;
  std::vector<ClockRange> ranges_;  // the thread's until it has ended; most_mhz 0: no answer yet
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace convoy
