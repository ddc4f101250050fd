#include "shared/control/hold_point.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <thread>

#include "base/exit_code.h"
#include "base/log.h"

namespace convoy {
namespace {

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

HoldPhase parse_phase(std::string_view text) {
  if (text == "load") return HoldPhase::load;
  if (text == "prefill") return HoldPhase::prefill;
  if (text == "decode") return HoldPhase::decode;
  return HoldPhase::none;
}

}  // namespace

HoldPoint::HoldPoint(std::string_view text) {
  if (text.empty()) return;
  const auto first = text.find(':');
  const auto second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second != std::string_view::npos)
    phase_ = parse_phase(text.substr(first + 1, second - first - 1));
  if (phase_ == HoldPhase::none || !parse_number(text.substr(0, first), rank_) || rank_ < 0 ||
      !parse_number(text.substr(second + 1), step_)) {
    throw UsageError(
        fmt::format("CONVOY_TEST_HOLD: '{}' is not <rank>:<load|prefill|decode>:<step>", text));
  }
}

void HoldPoint::reach(int rank, HoldPhase phase, HealthState& health,
                      const std::function<bool()>& released) {
  if (rank != rank_ || phase != phase_ || seen_++ != step_) return;
  const auto before = health.state();
  log(LogLevel::info, "held at a test point");
  health.set_state(proto::StageHealth::HELD);
  while (!released()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  health.set_state(before);
}

}  // namespace convoy
