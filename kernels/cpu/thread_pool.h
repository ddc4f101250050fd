// The threads that share the work of one CPU device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy {

/// Threads are created once, with every signal blocked and named "convoy-cpu-N", and sleep while
/// there is no work. parallel_for may be called from any thread: while one call has the pool,
/// others run on their own caller.
class ThreadPool {
 public:
  /// `threads` counts the caller: a pool of one has no thread of its own.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(begin, end, worker) until [0, total) is covered once, in ranges of at least
  /// `minimum_grain` (the last may be shorter when the whole is), and returns when all are done.
  /// `worker` is 0 for the caller and below threads(); two calls at the same time of one
  /// parallel_for never have the same. Work below two grains runs on the caller at once. fn must
  /// not throw.
  template <typename F>
  void parallel_for(int64_t total, int64_t minimum_grain, F&& fn) {
    using Function = std::remove_reference_t<F>;
    run(
        total, minimum_grain,
        [](void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<Function*>(context))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Task = void (*)(void* context, int64_t begin, int64_t end, int worker);

  void run(int64_t total, int64_t minimum_grain, Task task, void* context);
  void run_chunks(int worker);
  void work(int worker);
  bool join();
  void leave();

  std::vector<std::thread> workers_;
  std::mutex caller_;

  // The job. Written by the caller while no worker has joined.
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t total_ = 0;
  int64_t chunks_ = 0;

  // On cache lines of their own: workers and caller hammer them.
  alignas(64) std::atomic<int64_t> next_chunk_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};  // futex: counts jobs; workers sleep on it
  alignas(64) std::atomic<uint32_t> state_{
      0};  // futex: kOpen while workers may join, plus how many have
  std::atomic<bool> stop_{false};
};

}  // namespace convoy
