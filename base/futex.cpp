#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <ctime>

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::nanoseconds kPollInterval = std::chrono::microseconds(100);
constexpr std::chrono::nanoseconds kForever = std::chrono::hours(1);  // then it looks and sleeps on

uint32_t load(const uint32_t* word) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire);
}

bool spin_until_reached(const uint32_t* word, uint32_t value, int iterations) {
  for (int i = 0; i <= iterations; ++i) {
    if (counter_reached(load(word), value)) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

// Sleeps while *word is still `seen`. Returns for any reason; the caller looks again.
void sleep_while(const uint32_t* word, uint32_t seen, const timespec* timeout) {
  ::syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout, nullptr, 0);
}

// Sleeps for at most `interval` at a time. `timeout_ms` -1: waits for ever.
bool sleep_until_reached(const uint32_t* word, uint32_t value, int timeout_ms,
                         std::chrono::nanoseconds interval) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const uint32_t seen = load(word);
    if (counter_reached(seen, value)) return true;
    std::chrono::nanoseconds sleep = interval;
    if (timeout_ms >= 0) {
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (left.count() <= 0) return false;
      sleep = std::min(sleep, left);
    }
    const timespec timeout{static_cast<time_t>(sleep.count() / 1'000'000'000),
                           static_cast<long>(sleep.count() % 1'000'000'000)};
    sleep_while(word, seen, &timeout);
  }
}

}  // namespace

void futex_wait_reached(const uint32_t* word, uint32_t value, int spin_iterations) {
  if (spin_until_reached(word, value, spin_iterations)) return;
  for (;;) {
    const uint32_t seen = load(word);
    if (counter_reached(seen, value)) return;
    sleep_while(word, seen, nullptr);
  }
}

bool futex_wait_reached_for(const uint32_t* word, uint32_t value, int spin_iterations,
                            int timeout_ms) {
  if (spin_until_reached(word, value, spin_iterations)) return true;
  return sleep_until_reached(word, value, timeout_ms, kForever);
}

bool futex_wait_reached_polling(const uint32_t* word, uint32_t value, int spin_iterations,
                                int timeout_ms) {
  if (spin_until_reached(word, value, spin_iterations)) return true;
  return sleep_until_reached(word, value, timeout_ms, kPollInterval);
}

void futex_store_and_wake(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace convoy
