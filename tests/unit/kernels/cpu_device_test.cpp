#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/exit_code.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/unit/kernels/stalling_calls_cases.h"

namespace convoy {
namespace {

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t total : {0, 1, 2, 7, 63, 1000}) {
      for (const int64_t grain : {0, 1, 3, 64}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(total));
        pool.parallel_for(total, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_GE(end - begin, std::min(total, grain));
          EXPECT_LT(worker, threads);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& count : seen) ASSERT_EQ(count, 1) << total << " in grains of " << grain;
      }
    }
  }
}

TEST(ThreadPoolTest, ManyShortCallsLoseNothing) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int call = 0; call < 20'000; ++call) {
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 160'000);
}

TEST(ThreadPoolTest, SeveralCallersAtOnceAreServed) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(4);
  {
    std::vector<std::jthread> callers;
    for (int64_t& sum : sums) {
      callers.emplace_back([&pool, &sum] {
        for (int call = 0; call < 2000; ++call) {
          std::atomic<int64_t> part{0};
          pool.parallel_for(16, 1, [&](int64_t begin, int64_t end, int) { part += end - begin; });
          sum += part;
        }
      });
    }
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, 32'000);
}

TEST(ThreadPoolTest, WorkersShareTheWork) {
  ThreadPool pool(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  pool.parallel_for(8, 1, [&](int64_t, int64_t, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 2U);
}

TEST(ThreadPoolTest, SmallWorkStaysOnTheCaller) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    pool.parallel_for(19, 10, [&](int64_t begin, int64_t end, int) {
      EXPECT_EQ(end - begin, 19);
      EXPECT_EQ(std::this_thread::get_id(), caller);
    });
  }
}

TEST(ThreadPoolTest, IdleThreadsUseNoProcessorTime) {
  ThreadPool pool(4);
  pool.parallel_for(64, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before, 0.01);
}

TEST(ThreadPoolTest, WorkersAreNamedAndTakeNoSignals) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::string> names;
  bool blocked = true;
  pool.parallel_for(12, 1, [&](int64_t, int64_t, int worker) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    if (worker == 0) return;
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof(name));
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const std::lock_guard lock(mutex);
    names.insert(name);
    blocked = blocked && sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
  });
  EXPECT_EQ(names, (std::set<std::string>{"convoy-cpu-1", "convoy-cpu-2"}));
  EXPECT_TRUE(blocked);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "the caller's own mask changed";
}

TEST(CpuDeviceTest, TellsWhatItIs) {
  const auto device = make_cpu_device({2, "scalar"});
  const DeviceInfo info = device->info();
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  EXPECT_STREQ(device_kind_name(device->kind()), "cpu");
  EXPECT_STREQ(device_kind_name(DeviceKind::cuda), "cuda");
  EXPECT_EQ(info.id, "cpu");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.architecture, "scalar");
  EXPECT_EQ(info.threads, 2);
  EXPECT_GT(info.free_bytes, 0U);
  EXPECT_GE(info.total_bytes, info.free_bytes);
  EXPECT_FALSE(device->supports_graphs());
  EXPECT_FALSE(device->supports_memory_export());
}

TEST(CpuDeviceTest, RefusesBadOptions) {
  EXPECT_THROW(make_cpu_device({-1, ""}), UsageError);
  EXPECT_THROW(make_cpu_device({100'000, ""}), UsageError);
  try {
    make_cpu_device({1, "sse9"});
    FAIL() << "an unknown instruction set was taken";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("sse9"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("avx512, avx2, scalar"), std::string::npos)
        << error.what();
  }
}

TEST(CpuDeviceTest, AllocatesZeroedAlignedMemoryAndGivesItBack) {
  const auto device = make_cpu_device({1, ""});
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{9} << 20}) {
    const Buffer buffer = device->allocate(bytes, "test");
    ASSERT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0U);
    for (size_t i = 0; i < bytes; i += 509) ASSERT_EQ(buffer.as<unsigned char>()[i], 0);
  }
  EXPECT_FALSE(device->allocate(0, "nothing"));
  void* gone = nullptr;
  {
    const Buffer buffer = device->allocate(1 << 20, "test");
    gone = buffer.data();
  }
  unsigned char resident = 0;
  EXPECT_EQ(::mincore(gone, 4096, &resident), -1) << "the mapping is still there";
}

TEST(CpuDeviceTest, NamesWhatDoesNotFit) {
  const auto device = make_cpu_device({1, ""});
  for (const size_t bytes : {size_t{1} << 46, ~size_t{0} - 8192}) {
    try {
      device->allocate(bytes, "KV cache of layer 3");
      FAIL() << bytes << " bytes were given";
    } catch (const StartError& error) {
      EXPECT_NE(std::string(error.what()).find("KV cache of layer 3"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos)
          << error.what();
    }
  }
}

TEST(CpuDeviceTest, PhysicalCoresFollowTheAffinityMask) {
  const int all = physical_cores();
  EXPECT_GE(all, 1);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_LE(all, CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(physical_cores(), 1);
  EXPECT_EQ(make_cpu_device({0, ""})->info().threads, 1);
  sched_setaffinity(0, sizeof(before), &before);
}

TEST(CpuStreamTest, CopiesAndClears) {
  const auto device = make_cpu_device({1, ""});
  const auto stream = device->make_stream();
  std::vector<int> host = {1, 2, 3, 4};
  const auto registration = device->register_host(host.data(), host.size() * sizeof(int));
  EXPECT_NE(registration, nullptr);
  const Buffer buffer = device->allocate(16, "test");
  stream->copy(buffer.data(), host.data(), 16);
  stream->fill_zero(buffer.as<int>() + 1, 8);
  stream->copy(host.data(), buffer.data(), 16);
  stream->copy(nullptr, nullptr, 0);
  stream->synchronize();
  EXPECT_EQ(host, (std::vector<int>{1, 0, 0, 4}));
}

TEST(CpuStreamTest, WaitsForTheWordAndSeesWhatCameBefore) {
  CpuDevice device({1, ""});
  for (const int spins : {0, 1000}) {
    device.set_wait_spins(spins);
    uint32_t word = 0xFFFFFFF0U;  // the counter wraps on the way
    int payload = 0;
    std::jthread writer([&] {
      const auto stream = device.make_stream();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      stream->write_value(&word, 0xFFFFFFFFU);  // not enough yet
      payload = 42;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      stream->write_value(&word, 3);
    });
    const auto stream = device.make_stream();
    const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    stream->wait_value(&word, 2);
    EXPECT_EQ(payload, 42);
    EXPECT_LT(cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before, 0.01) << "the wait spun";
  }
}

TEST(CpuDeviceTest, StallingCallsAreForbiddenWhileLinksAreOpen) {
  const auto device = make_cpu_device({.threads = 1, .instruction_set = ""});
  test::expect_stalling_calls_are_forbidden(*device);
}

}  // namespace
}  // namespace convoy
