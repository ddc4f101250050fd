#include "shared/control/health_state.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "shared/control/frame.h"

namespace convoy {
namespace {

constexpr double kNanoseconds = 1e9;

uint64_t to_ns(double seconds) {
  return static_cast<uint64_t>(std::max(0.0, seconds) * kNanoseconds);
}

double percentile(const std::vector<float>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

HealthState::HealthState() {
  description_.set_protocol_version(kProtocolVersion);
  description_.set_pid(::getpid());
}

void HealthState::set_failed(const std::string& message) {
  const std::lock_guard lock(mutex_);
  last_error_ = message;
  set_state(proto::StageHealth::FAILED);
}

void HealthState::set_description(const proto::StageHealth& description) {
  const std::lock_guard lock(mutex_);
  description_ = description;
  description_.set_protocol_version(kProtocolVersion);
  description_.set_pid(::getpid());
}

void HealthState::reset(proto::StageHealth::State state) {
  set_description({});
  for (auto* counter : {&loaded_bytes_, &total_load_bytes_, &free_bytes_, &page_groups_used_,
                        &steps_, &busy_ns_, &wait_ns_, &received_bytes_, &sent_bytes_}) {
    counter->store(0, std::memory_order_relaxed);
  }
  last_step_at_ns_.store(0, std::memory_order_relaxed);
  set_state(state);
}

void HealthState::set_load_progress(uint64_t loaded, uint64_t total) {
  loaded_bytes_.store(loaded, std::memory_order_relaxed);
  total_load_bytes_.store(total, std::memory_order_relaxed);
}

void HealthState::add_step(double busy_s, double wait_s) {
  const uint64_t step = steps_.load(std::memory_order_relaxed);
  recent_ms_[step % kRecentSteps].store(static_cast<float>(busy_s * 1e3),
                                        std::memory_order_relaxed);
  busy_ns_.fetch_add(to_ns(busy_s), std::memory_order_relaxed);
  wait_ns_.fetch_add(to_ns(wait_s), std::memory_order_relaxed);
  last_step_at_ns_.store((Clock::now() - started_).count(), std::memory_order_relaxed);
  steps_.store(step + 1, std::memory_order_release);
}

void HealthState::set_prefix_cache(const proto::PrefixCacheHealth& cache) {
  const std::lock_guard lock(mutex_);
  *description_.mutable_prefix_cache() = cache;
}

void HealthState::add_traffic(uint64_t received_bytes, uint64_t sent_bytes) {
  received_bytes_.fetch_add(received_bytes, std::memory_order_relaxed);
  sent_bytes_.fetch_add(sent_bytes, std::memory_order_relaxed);
}

proto::StageHealth HealthState::snapshot() const {
  proto::StageHealth health;
  {
    const std::lock_guard lock(mutex_);
    health = description_;
    health.set_last_error(last_error_);
  }
  const uint64_t steps = steps_.load(std::memory_order_acquire);
  health.set_state(state());
  health.set_loaded_bytes(loaded_bytes_.load(std::memory_order_relaxed));
  health.set_total_load_bytes(total_load_bytes_.load(std::memory_order_relaxed));
  health.set_free_bytes(free_bytes_.load(std::memory_order_relaxed));
  health.set_page_groups_used(page_groups_used_.load(std::memory_order_relaxed));
  health.set_steps(steps);
  health.set_busy_s(static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) / kNanoseconds);
  health.set_wait_s(static_cast<double>(wait_ns_.load(std::memory_order_relaxed)) / kNanoseconds);
  health.set_received_bytes(received_bytes_.load(std::memory_order_relaxed));
  health.set_sent_bytes(sent_bytes_.load(std::memory_order_relaxed));
  // The clock is read after the last step's time, so that no step lies in the future.
  const double last_step_s =
      static_cast<double>(last_step_at_ns_.load(std::memory_order_relaxed)) / kNanoseconds;
  const double now_s = std::chrono::duration<double>(Clock::now() - started_).count();
  health.set_uptime_s(now_s);
  if (steps > 0) {
    std::vector<float> recent;
    for (size_t i = 0; i < std::min<uint64_t>(steps, kRecentSteps); ++i)
      recent.push_back(recent_ms_[i].load(std::memory_order_relaxed));
    health.set_last_step_ms(recent_ms_[(steps - 1) % kRecentSteps].load(std::memory_order_relaxed));
    std::sort(recent.begin(), recent.end());
    health.set_p50_step_ms(percentile(recent, 0.50));
    health.set_p95_step_ms(percentile(recent, 0.95));
    health.set_since_last_step_s(std::max(0.0, now_s - last_step_s));
  }
  return health;
}

}  // namespace convoy
