#include "shared/plan/device_values.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/exit_code.h"

namespace convoy {
namespace {

constexpr double kMostBytes = 1e15;
constexpr double kMostSpeed = 1e9;
constexpr double kLeastSpeed = 1e-3;

// A number at the start of `text`, which keeps what follows it.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

std::optional<uint64_t> parse_size(std::string_view text) {
  const auto number = take_number(text);
  if (!number) return std::nullopt;
  constexpr std::array<std::pair<std::string_view, int>, 5> kUnits{
      {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  for (const auto& [unit, shift] : kUnits) {
    if (text != unit) continue;
    const double bytes = *number * static_cast<double>(uint64_t{1} << shift);
    if (bytes >= 1 && bytes <= kMostBytes) return static_cast<uint64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<double> parse_speed(std::string_view text) {
  const auto number = take_number(text);
  if (!number || !text.empty() || !(*number >= kLeastSpeed && *number <= kMostSpeed))
    return std::nullopt;
  return number;
}

template <typename Value, typename Parse>
std::vector<DeviceValue<Value>> parse_values(std::string_view text, std::string_view source,
                                             const Parse& parse, std::string_view allowed) {
  std::vector<DeviceValue<Value>> values;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto equals = part.find('=');
    const auto value =
        equals == std::string_view::npos ? std::nullopt : parse(part.substr(equals + 1));
    if (!value) throw UsageError(fmt::format("{}: '{}' is not DEVICE={}", source, part, allowed));
    const DeviceSpec device = parse_devices(part.substr(0, equals), source).front();
    for (const DeviceValue<Value>& earlier : values) {
      if (earlier.device.id == device.id)
        throw UsageError(fmt::format("{}: {} is named twice", source, device.id));
    }
    values.push_back({device, *value});
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return values;
}

}  // namespace

std::vector<DeviceValue<uint64_t>> parse_memory_limits(std::string_view text,
                                                       std::string_view source) {
  return parse_values<uint64_t>(text, source, parse_size,
                                "SIZE, a number with B, KiB, MiB, GiB or TiB (0=20GiB)");
}

std::vector<DeviceValue<double>> parse_device_speeds(std::string_view text,
                                                     std::string_view source) {
  return parse_values<double>(text, source, parse_speed, "SPEED, a positive number (0=3.9)");
}

}  // namespace convoy
