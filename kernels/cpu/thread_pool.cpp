#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string>

#include "base/check.h"
#include "base/exit_code.h"
#include "base/start_thread.h"

namespace convoy {
namespace {

constexpr uint32_t kOpen = 1U << 31;
// Ranges per thread: late or slow threads take fewer.
constexpr int64_t kChunksPerThread = 4;
// About two microseconds, for the next operation of the same step.
constexpr int kSpins = 60;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t seen) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word, int count) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Blocks until the word differs from `seen` and returns what it is then.
uint32_t wait_for_change(std::atomic<uint32_t>& word, uint32_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause_briefly();
  }
  for (;;) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != seen) return now;
    sleep_while(word, seen);
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CONVOY_CHECK_OP(threads, >=, 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.push_back(
          start_thread("convoy-cpu-" + std::to_string(worker), [this, worker] { work(worker); }));
    }
  } catch (const StartError&) {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    wake(generation_, INT_MAX);
    for (std::thread& thread : workers_) thread.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  wake(generation_, INT_MAX);
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(int64_t total, int64_t minimum_grain, Task task, void* context) {
  if (total <= 0) return;
  const int64_t grain = std::max<int64_t>(minimum_grain, 1);
  const int64_t chunks = std::min(total / grain, threads() * kChunksPerThread);
  if (chunks < 2 || workers_.empty() || !caller_.try_lock()) {
    task(context, 0, total, 0);
    return;
  }
  const std::lock_guard<std::mutex> lock(caller_, std::adopt_lock);
  task_ = task;
  context_ = context;
  total_ = total;
  chunks_ = chunks;
  next_chunk_.store(0, std::memory_order_relaxed);
  state_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  wake(generation_,
       static_cast<int>(std::min<int64_t>(chunks - 1, static_cast<int64_t>(workers_.size()))));

  run_chunks(0);
  // Threads that have not woken by now are not waited for: they find the job closed.
  uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while (state != 0) state = wait_for_change(state_, state);
}

void ThreadPool::run_chunks(int worker) {
  for (;;) {
    const int64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= chunks_) return;
    task_(context_, total_ * chunk / chunks_, total_ * (chunk + 1) / chunks_, worker);
  }
}

bool ThreadPool::join() {
  uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadPool::leave() {
  // Zero means closed and empty: the caller may be asleep on it.
  if (state_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake(state_, 1);
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_change(generation_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!join()) continue;
    run_chunks(worker);
    leave();
  }
}

}  // namespace convoy
