#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace convoy {
namespace {

TEST(Check, NamesFileAndBothValues) {
  const int layers = 3;
  EXPECT_DEATH(CONVOY_CHECK_OP(layers, ==, 4), "base/base_test.cpp:.*layers == 4 \\(3 vs 4\\)");
  EXPECT_DEATH(CONVOY_CHECK(layers == 4, "a stage without layers"), "a stage without layers");
}

TEST(UniqueFdTest, ClosesOnceAndMovedFromHoldsNone) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  UniqueFd write_end(fds[1]);
  {
    UniqueFd read_end(fds[0]);
    UniqueFd moved(std::move(read_end));
    EXPECT_EQ(read_end.get(), -1);
    EXPECT_EQ(moved.get(), fds[0]);
  }
  EXPECT_EQ(::fcntl(fds[0], F_GETFD), -1);
  EXPECT_NE(::fcntl(fds[1], F_GETFD), -1);
}

TEST(ResultTest, HoldsValueOrError) {
  const Result<int> good(7);
  const Result<int> bad(Error{"no pages"});
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 7);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error(), "no pages");
}

TEST(Counter, ComparesAcrossTheWrap) {
  EXPECT_TRUE(counter_reached(5, 5));
  EXPECT_FALSE(counter_reached(4, 5));
  EXPECT_TRUE(counter_reached(2, 0xfffffffeU));
  EXPECT_FALSE(counter_reached(0xfffffffeU, 2));
}

TEST(Futex, TimesOutWithoutAWrite) {
  uint32_t word = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(futex_wait_reached_for(&word, 1, 0, 30));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
}

TEST(Futex, AWriteReleasesEveryWaiter) {
  uint32_t word = 0;
  int payload = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      futex_wait_reached(&word, 2, 0);
      EXPECT_EQ(payload, 42);
    });
  }
  payload = 42;
  futex_store_and_wake(&word, 1);
  futex_store_and_wake(&word, 2);
  for (auto& waiter : waiters) waiter.join();
}

TEST(Futex, PollingSeesAWriteThatWakesNobody) {
  uint32_t word = 0;
  std::thread card([&word] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic_ref<uint32_t>(word).store(3, std::memory_order_release);
  });
  EXPECT_TRUE(futex_wait_reached_polling(&word, 3, 0, -1));
  card.join();
  EXPECT_TRUE(futex_wait_reached_polling(&word, 3, 0, 0));
  EXPECT_FALSE(futex_wait_reached_polling(&word, 4, 0, 10));
}

class CollectingSink : public LogSink {
 public:
  void write(LogLevel, std::string_view line) override { lines.emplace_back(line); }
  std::vector<std::string> lines;
};

TEST(Log, DropsLinesBelowTheLevel) {
  CollectingSink sink;
  set_log_sink(&sink);
  log(LogLevel::debug, "hidden");
  log(LogLevel::warning, "shown");
  set_log_sink(nullptr);
  EXPECT_EQ(sink.lines, std::vector<std::string>{"shown"});
  LogLevel level = LogLevel::info;
  EXPECT_FALSE(parse_log_level("loud", level));
  EXPECT_TRUE(parse_log_level("error", level));
  EXPECT_EQ(level, LogLevel::error);
}

}  // namespace
}  // namespace convoy
