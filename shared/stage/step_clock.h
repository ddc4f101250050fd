// How long a device computed for each step and how long it waited for the step's input.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/device/device.h"

namespace convoy {

/// Records moments in a stream's order, so it does not matter how far ahead the host is. One thread
/// uses it.
class StepClock {
 public:
  explicit StepClock(Device& device);

  /// The stream has got to the step; its input may not be there yet.
  void ready(Stream& stream);
  /// The input is there.
  void begin(Stream& stream);
  /// Computed. `due_since_last`: the input was due from the end of the step before (a generated
  /// token), not from ready() on (a prompt, which comes when it comes).
  void end(Stream& stream, bool due_since_last);

  struct Times {
    double busy_s = 0;
    double wait_s = 0;
  };
  /// The oldest step that was not taken yet, once the device has passed it.
  std::optional<Times> take();

 private:
  static constexpr uint64_t kSteps = 64;
  struct Step {
    std::unique_ptr<Event> ready, begin, end;
    bool due_since_last = false;
  };
  Step& step(uint64_t index) { return steps_[index % kSteps]; }

  std::array<Step, kSteps> steps_;
  uint64_t recorded_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace convoy
