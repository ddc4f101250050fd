// Places where a process stops on purpose, so that tests kill it at a known moment. Off unless
// asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shared/control/health_state.h"

namespace convoy {

enum class HoldPhase { none, load, prefill, decode };

/// `CONVOY_TEST_HOLD=<rank>:<load|prefill|decode>:<step>`: the process of that rank stops at the
/// beginning of that step of that phase, counted from 0 (load: the step is a stored tensor). Its
/// health state says HELD.
class HoldPoint {
 public:
  HoldPoint() = default;
  /// Throws UsageError for a malformed text; "" never holds.
  explicit HoldPoint(std::string_view text);

  /// Blocks while this is the held place of this `rank` and `released` returns false. Called once
  /// per step.
  void reach(int rank, HoldPhase phase, HealthState& health, const std::function<bool()>& released);

 private:
  int rank_ = -1;
  HoldPhase phase_ = HoldPhase::none;
  uint64_t step_ = 0;
  uint64_t seen_ = 0;
};

}  // namespace convoy
