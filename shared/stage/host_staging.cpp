#include "shared/stage/host_staging.h"

#include <chrono>
#include <cstring>
#include <thread>

namespace convoy {
namespace {

constexpr size_t kSlotAlignment = 64;
constexpr int kSpins = 200;
constexpr auto kSleep = std::chrono::microseconds(20);

}  // namespace

void wait_until_passed(const Event& event) {
  for (int spins = 0; !event.passed(); ++spins) {
    if (spins >= kSpins) std::this_thread::sleep_for(kSleep);
  }
}

HostStaging::HostStaging(Device& device, size_t slot_bytes, const char* label)
    : slot_bytes_((slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment),
      memory_(device.allocate_host(slot_bytes_ * kSlots, label)),
      used_(kSlots, false) {
  for (int i = 0; i < kSlots; ++i) passed_.push_back(device.make_event());
}

std::byte* HostStaging::begin() {
  if (used_[next_]) wait_until_passed(*passed_[next_]);
  return memory_.as<std::byte>() + next_ * slot_bytes_;
}

void HostStaging::copy(Stream& stream, void* to, const void* from, size_t bytes) {
  std::byte* const staged = begin();
  std::memcpy(staged, from, bytes);
  stream.copy(to, staged, bytes);
  end(stream);
}

void HostStaging::end(Stream& stream) {
  passed_[next_]->record(stream);
  used_[next_] = true;
  next_ = (next_ + 1) % kSlots;
}

}  // namespace convoy
