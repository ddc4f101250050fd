// Words that streams wait on and write: between streams, with the host, and what stays possible
// while a stream is blocked.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "tests/gpu/first_device.h"

namespace convoy::test {
namespace {

using Clock = std::chrono::steady_clock;

class CudaWords : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    memory_ = device().allocate_host(4096, "words");
    data_ = device().allocate(kBytes, "data");
    host_ = device().allocate_host(kBytes, "host");
  }
  uint32_t* word(int index) { return memory_.as<uint32_t>() + index * 64; }
  uint32_t value(int index) {
    return std::atomic_ref<uint32_t>(*word(index)).load(std::memory_order_acquire);
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  static constexpr size_t kBytes = size_t{8} << 20;
  Buffer memory_, data_, host_;
};

TEST_F(CudaWords, AStreamWaitsForAnotherStreamsWrite) {
  const auto reader = device().make_stream();
  const auto writer = device().make_stream();
  std::memset(host_.data(), 0x11, kBytes);
  reader->wait_value(word(0), 1);
  reader->copy(host_.data(), data_.data(), kBytes);
  pause();
  EXPECT_FALSE(reader->idle());
  EXPECT_EQ(host_.as<uint8_t>()[kBytes - 1], 0x11);
  writer->fill_zero(data_.data(), kBytes);
  writer->write_value(word(0), 1);
  reader->synchronize();
  for (size_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(host_.as<uint8_t>()[i], 0);
}

TEST_F(CudaWords, AHostWriteReleasesAStreamAndAWriteOfAStreamIsSeenByTheHost) {
  const auto stream = device().make_stream();
  stream->wait_value(word(0), 5);
  stream->copy(data_.data(), host_.data(), kBytes);
  stream->write_value(word(1), 9);
  futex_store_and_wake(word(0), 4);
  EXPECT_FALSE(futex_wait_reached_polling(word(1), 9, 0, 30));
  futex_store_and_wake(word(0), 6);  // reached, not equal
  EXPECT_TRUE(futex_wait_reached_polling(word(1), 9, 0, 5000));
  EXPECT_EQ(value(1), 9U);
  stream->synchronize();
}

TEST_F(CudaWords, CountersMayWrap) {
  const auto stream = device().make_stream();
  futex_store_and_wake(word(0), 0xfffffff0U);
  stream->wait_value(word(0), 0xfffffff0U);
  stream->synchronize();
  stream->wait_value(word(0), 3);
  pause();
  EXPECT_FALSE(stream->idle());
  futex_store_and_wake(word(0), 3);
  stream->synchronize();
}

// What a stream copied to the host is there when its write is seen, each time.
TEST_F(CudaWords, AWriteComesAfterTheDataBeforeIt) {
  const auto stream = device().make_stream();
  const Buffer numbers = device().allocate_host(kBytes, "numbers");
  for (uint32_t round = 1; round <= 200; ++round) {
    std::memset(host_.data(), static_cast<int>(round), kBytes);
    stream->copy(data_.data(), host_.data(), kBytes);
    stream->copy(numbers.data(), data_.data(), kBytes);
    stream->write_value(word(0), round);
    futex_wait_reached_polling(word(0), round, 1 << 20, -1);
    ASSERT_EQ(numbers.as<uint8_t>()[kBytes - 1], static_cast<uint8_t>(round));
    ASSERT_EQ(numbers.as<uint8_t>()[kBytes / 2], static_cast<uint8_t>(round));
  }
}

// One block copies and rings, for sizes and alignments of every unit; larger copies take two steps.
TEST_F(CudaWords, ACopyThatRingsIsThereWhenItsWordIs) {
  const auto stream = device().make_stream();
  const Buffer back = device().allocate_host(kBytes, "back");
  uint32_t round = 0;
  for (const size_t bytes : {size_t{1}, size_t{6}, size_t{20}, size_t{4096}, size_t{10240},
                             size_t{16400}, size_t{65536}, size_t{65552}, kBytes}) {
    for (int repetition = 0; repetition < 50; ++repetition) {
      ++round;
      for (size_t i = 0; i < bytes; ++i) host_.as<uint8_t>()[i] = static_cast<uint8_t>(round + i);
      std::memset(back.data(), 0, kBytes);
      stream->copy(data_.data(), host_.data(), bytes);
      stream->copy_then_write(back.data(), data_.data(), bytes, word(0), round);
      futex_wait_reached_polling(word(0), round, 1 << 20, -1);
      ASSERT_EQ(std::memcmp(back.data(), host_.data(), bytes), 0) << bytes;
      ASSERT_EQ(bytes < kBytes ? back.as<uint8_t>()[bytes] : 0, 0) << bytes;
      if (bytes == kBytes) break;
    }
  }
}

// Three streams are all that a process may have waiting. Everything that a stage does while it
// serves goes on beside them, and nothing that is enqueued behind a wait stops the host.
TEST_F(CudaWords, BlockedStreamsLeaveTheHostAndOtherStreamsAlone) {
  std::vector<std::unique_ptr<Stream>> blocked;
  const Buffer other = device().allocate_host(4096, "other");
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) {
    blocked.push_back(device().make_stream());
    blocked.back()->wait_value(word(0), 1);
    blocked.back()->copy(host_.data(), data_.data(), kBytes);
    blocked.back()->copy(other.data(), host_.data(), 32);  // host to host
  }
  const auto working = device().make_stream();
  const auto event = device().make_event();
  const Buffer more = device().allocate(kBytes, "more");
  const auto graph = device().capture(*working, [&] { working->fill_zero(more.data(), kBytes); });
  graph->launch(*working);
  event->record(*working);
  working->synchronize();
  EXPECT_TRUE(event->passed());
  EXPECT_GT(device().info().free_bytes, 0U);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  for (const auto& stream : blocked) EXPECT_FALSE(stream->idle());
  futex_store_and_wake(word(0), 1);
  for (const auto& stream : blocked) stream->synchronize();
}

// Eight steps and 512 launches ahead are what a stage may enqueue behind a wait.
TEST_F(CudaWords, ManyLaunchesFitBehindAWait) {
  const auto stream = device().make_stream();
  stream->wait_value(word(0), 1);
  const auto begin = Clock::now();
  for (int i = 0; i < 512; ++i) stream->fill_zero(data_.data(), 256);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_FALSE(stream->idle());
  futex_store_and_wake(word(0), 1);
  stream->synchronize();
}

TEST_F(CudaWords, TwoStreamsPlayPingPong) {
  const auto ping = device().make_stream();
  const auto pong = device().make_stream();
  constexpr uint32_t kRounds = 400;
  std::thread partner([&] {
    device().bind_thread();
    for (uint32_t i = 1; i <= kRounds; ++i) {
      pong->wait_value(word(0), i);
      pong->write_value(word(1), i);
    }
    pong->synchronize();
  });
  for (uint32_t i = 1; i <= kRounds; ++i) {
    ping->write_value(word(0), i);
    ping->wait_value(word(1), i);
  }
  ping->synchronize();
  partner.join();
  EXPECT_EQ(value(1), kRounds);
}

}  // namespace
}  // namespace convoy::test
