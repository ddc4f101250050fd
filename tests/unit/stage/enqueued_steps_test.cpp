// What bounds a host that runs ahead of its device, and what times are reported of steps that were
// enqueued: on a stream that enqueues, without a card.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <set>

#include "shared/stage/host_staging.h"
#include "shared/stage/step_clock.h"
#include "tests/unit/ipc/queued_stream.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Passed when the stream has come to it. Its time is the number of the record, of all events.
class CountedEvent final : public Event {
 public:
  explicit CountedEvent(int& clock) : clock_(clock) {}
  void record(Stream& stream) override {
    stream.write_value(&passed_, ++records_);
    at_ = ++clock_;
  }
  bool passed() const override {
    return records_ > 0 && std::atomic_ref<uint32_t>(passed_).load() == records_;
  }
  double ms_since(const Event& earlier) const override {
    return at_ - static_cast<const CountedEvent&>(earlier).at_;
  }

 private:
  int& clock_;
  mutable uint32_t passed_ = 0;
  uint32_t records_ = 0;
  int at_ = 0;
};

class EnqueuingDevice final : public QueuedDevice {
 public:
  std::unique_ptr<Event> make_event() override { return std::make_unique<CountedEvent>(clock); }
  int clock = 0;
};

TEST(HostStaging, ASlotIsNotFilledAgainBeforeTheStreamHasReadIt) {
  EnqueuingDevice device;
  QueuedStream stream;
  uint32_t gate = 0;
  HostStaging staging(device, sizeof(uint32_t), "test");
  std::vector<uint32_t> copied(HostStaging::kSlots + 1, 0);
  const auto enqueue = [&](uint32_t i) {
    std::byte* const slot = staging.begin();
    const uint32_t value = 100 + i;
    std::memcpy(slot, &value, sizeof(value));
    stream.copy(&copied[i], slot, sizeof(value));
    staging.end(stream);
  };
  stream.wait_value(&gate, 1);  // the stream is behind
  for (uint32_t i = 0; i < HostStaging::kSlots; ++i) enqueue(i);
  auto next = std::async(std::launch::async, [&] { enqueue(HostStaging::kSlots); });
  EXPECT_EQ(next.wait_for(milliseconds(50)), std::future_status::timeout) << "one step too many";
  QueuedStream other;
  other.write_value(&gate, 1);
  ASSERT_EQ(next.wait_for(milliseconds(5000)), std::future_status::ready);
  stream.synchronize();
  for (uint32_t i = 0; i < copied.size(); ++i) EXPECT_EQ(copied[i], 100 + i);
}

TEST(HostStaging, SlotsAreApart) {
  EnqueuingDevice device;
  QueuedStream stream;
  HostStaging staging(device, 100, "test");
  std::set<std::byte*> slots;
  for (int i = 0; i < HostStaging::kSlots; ++i) {
    slots.insert(staging.begin());
    staging.end(stream);
  }
  ASSERT_EQ(slots.size(), static_cast<size_t>(HostStaging::kSlots));
  for (auto slot = slots.begin(); std::next(slot) != slots.end(); ++slot)
    EXPECT_GE(*std::next(slot) - *slot, 100);
  stream.synchronize();
}

TEST(StepClock, TellsAStepOnceTheStreamHasPassedIt) {
  EnqueuingDevice device;
  QueuedStream stream;
  StepClock clock(device);
  uint32_t gate = 0;
  clock.ready(stream);
  clock.begin(stream);
  stream.wait_value(&gate, 1);
  clock.end(stream, false);
  EXPECT_FALSE(clock.take().has_value());
  QueuedStream other;
  other.write_value(&gate, 1);
  stream.synchronize();
  const auto times = clock.take();
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->busy_s, 1e-3) << "from begin to end";
  EXPECT_DOUBLE_EQ(times->wait_s, 1e-3) << "from ready to begin";
  EXPECT_FALSE(clock.take().has_value()) << "taken once";
}

TEST(StepClock, AGeneratedTokenIsDueFromTheEndOfTheStepBefore) {
  EnqueuingDevice device;
  QueuedStream stream;
  StepClock clock(device);
  const auto step = [&](bool generated) {
    clock.ready(stream);
    clock.begin(stream);
    clock.end(stream, generated);
  };
  step(false);
  device.clock += 10;  // the stream had nothing to do
  step(true);
  device.clock += 10;
  step(false);
  stream.synchronize();
  EXPECT_DOUBLE_EQ(clock.take()->wait_s, 1e-3);
  EXPECT_DOUBLE_EQ(clock.take()->wait_s, 12e-3);
  EXPECT_DOUBLE_EQ(clock.take()->wait_s, 1e-3);
}

TEST(StepClock, ForgetsTheOldestWhenNobodyTakes) {
  EnqueuingDevice device;
  QueuedStream stream;
  StepClock clock(device);
  for (int i = 0; i < 200; ++i) {
    clock.ready(stream);
    clock.begin(stream);
    clock.end(stream, true);
  }
  stream.synchronize();
  int taken = 0;
  while (const auto times = clock.take()) {
    EXPECT_DOUBLE_EQ(times->busy_s, 1e-3);
    EXPECT_DOUBLE_EQ(times->wait_s, 2e-3);
    ++taken;
  }
  EXPECT_GT(taken, 50);
  EXPECT_LT(taken, 64);
}

}  // namespace
}  // namespace convoy
