// The numbers a process answers with when asked how it is.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "health.pb.h"

namespace convoy {

/// Written by the thread that computes, read by the health thread at any time. Counters are
/// atomics; names and sizes that are set once at load lie behind a mutex that nobody holds while
/// computing.
class HealthState {
 public:
  HealthState();

  void set_state(proto::StageHealth::State state) {
    state_.store(state, std::memory_order_relaxed);
  }
  proto::StageHealth::State state() const { return state_.load(std::memory_order_relaxed); }
  void set_failed(const std::string& message);
  /// Rank, device, layers and bytes; counters are left alone.
  void set_description(const proto::StageHealth& description);
  /// Everything back to a worker that waits for a coordinator; the last error stays.
  void reset(proto::StageHealth::State state);

  void set_load_progress(uint64_t loaded, uint64_t total);
  void set_free_bytes(uint64_t bytes) { free_bytes_.store(bytes, std::memory_order_relaxed); }
  void set_page_groups_used(uint64_t used) {
    page_groups_used_.store(used, std::memory_order_relaxed);
  }
  /// One step that computed for `busy_s` after waiting for `wait_s`.
  void add_step(double busy_s, double wait_s);
  /// Rank 0, whenever it changed.
  void set_prefix_cache(const proto::PrefixCacheHealth& cache);
  void add_traffic(uint64_t received_bytes, uint64_t sent_bytes);

  proto::StageHealth snapshot() const;

 private:
  static constexpr size_t kRecentSteps = 256;
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  proto::StageHealth description_;
  std::string last_error_;

  Clock::time_point started_ = Clock::now();
  std::atomic<proto::StageHealth::State> state_{proto::StageHealth::STARTING};
  std::atomic<uint64_t> loaded_bytes_{0}, total_load_bytes_{0}, free_bytes_{0},
      page_groups_used_{0};
  std::atomic<uint64_t> steps_{0}, busy_ns_{0}, wait_ns_{0}, received_bytes_{0}, sent_bytes_{0};
  std::atomic<int64_t> last_step_at_ns_{0};
  std::array<std::atomic<float>, kRecentSteps> recent_ms_{};
};

}  // namespace convoy
