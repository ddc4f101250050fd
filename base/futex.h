// Waiting on a 32-bit word that may lie in memory shared by processes (so not std::atomic::wait,
// which is process-private).
//
// A host thread that stores a word wakes its waiters. A GPU stream that writes one cannot: whoever
// waits on the host for a word that a stream may write calls futex_wait_reached_polling.
#pragma once

#include <cstdint>

namespace convoy {

/// Whether a monotone counter that may wrap has reached `value`.
constexpr bool counter_reached(uint32_t counter, uint32_t value) {
  return static_cast<int32_t>(counter - value) >= 0;
}

/// Blocks until counter_reached(*word, value), with acquire ordering. Spins `spin_iterations` times
/// before it sleeps.
void futex_wait_reached(const uint32_t* word, uint32_t value, int spin_iterations);

/// As above, but gives up after `timeout_ms`; false means the value was not reached.
bool futex_wait_reached_for(const uint32_t* word, uint32_t value, int spin_iterations,
                            int timeout_ms);

/// As above for a word that a GPU may write: looks at least every 100 microseconds. A host thread's
/// write still wakes it at once. `timeout_ms` -1 waits for ever.
bool futex_wait_reached_polling(const uint32_t* word, uint32_t value, int spin_iterations,
                                int timeout_ms);

/// Stores `value` with release ordering and wakes every waiter, in any process.
void futex_store_and_wake(uint32_t* word, uint32_t value);

}  // namespace convoy
