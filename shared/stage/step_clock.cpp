#include "shared/stage/step_clock.h"

#include <algorithm>

namespace convoy {

StepClock::StepClock(Device& device) {
  for (Step& step : steps_) {
    step.ready = device.make_event();
    step.begin = device.make_event();
    step.end = device.make_event();
  }
}

void StepClock::ready(Stream& stream) {
  // Nobody took so many: the oldest is forgotten. The one before the oldest is still looked at.
  if (recorded_ - taken_ + 1 >= kSteps) ++taken_;
  step(recorded_).ready->record(stream);
}

void StepClock::begin(Stream& stream) {
  step(recorded_).begin->record(stream);
}

void StepClock::end(Stream& stream, bool due_since_last) {
  step(recorded_).end->record(stream);
  step(recorded_).due_since_last = due_since_last;
  ++recorded_;
}

std::optional<StepClock::Times> StepClock::take() {
  if (taken_ == recorded_ || !step(taken_).end->passed()) return std::nullopt;
  const Step& done = step(taken_);
  const bool follows = done.due_since_last && taken_ > 0;
  const Event& due = follows ? *step(taken_ - 1).end : *done.ready;
  ++taken_;
  return Times{.busy_s = done.end->ms_since(*done.begin) / 1000,
               .wait_s = std::max(0.0, done.begin->ms_since(due) / 1000)};
}

}  // namespace convoy
