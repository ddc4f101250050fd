#include "shared/plan/device_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/exit_code.h"

namespace convoy {
namespace {

constexpr size_t kMaxStages = 64;
constexpr int kMaxLayersPerStage = 4096;

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::optional<int> parse_int(std::string_view text, int least, int most) {
  if (text.starts_with('-')) return std::nullopt;  // "-0" would pass as 0
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return std::nullopt;
  return value;
}

char lower_hex(char c) {
  return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_hex_groups(std::string_view text, std::string_view shape) {
  // In `shape`, 'x' stands for one hexadecimal digit and anything else for itself.
  return text.size() == shape.size() &&
         std::equal(text.begin(), text.end(), shape.begin(), [](char c, char s) {
           const bool hex =
               (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
           return s == 'x' ? hex : c == s;
         });
}

// One device has one spelling: lower-case digits, and the four-digit domain where the domain fits
// it.
std::string normalised_pci_id(std::string_view text) {
  std::string id(text);
  std::transform(id.begin(), id.end(), id.begin(), lower_hex);
  if (id.size() == std::string_view("xx:xx.x").size()) return "0000:" + id;
  if (id.size() == std::string_view("xxxxxxxx:xx:xx.x").size() && id.starts_with("0000"))
    id.erase(0, 4);
  return id;
}

std::optional<DeviceSpec> parse_one(std::string_view text) {
  if (text == "cpu") return DeviceSpec{DeviceKind::cpu, "cpu"};
  std::string_view number = text;
  if (number.starts_with("cuda:")) number.remove_prefix(5);
  if (const auto ordinal = parse_int(number, 0, 127))
    return DeviceSpec{DeviceKind::cuda, fmt::format("cuda:{}", *ordinal)};
  if (text.starts_with("GPU-") &&
      is_hex_groups(text.substr(4), "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")) {
    std::string uuid(text);
    std::transform(uuid.begin() + 4, uuid.end(), uuid.begin() + 4, lower_hex);
    return DeviceSpec{DeviceKind::cuda, std::move(uuid)};
  }
  for (const std::string_view shape : {"xxxx:xx:xx.x", "xxxxxxxx:xx:xx.x", "xx:xx.x"}) {
    if (is_hex_groups(text, shape)) return DeviceSpec{DeviceKind::cuda, normalised_pci_id(text)};
  }
  return std::nullopt;
}

}  // namespace

std::vector<DeviceSpec> parse_devices(std::string_view text, std::string_view source) {
  if (text.find(';') != std::string_view::npos) {
    throw UsageError(fmt::format(
        "{}: '{}' names several device sets (; is between them), which convoy bench alone takes",
        source, text));
  }
  std::vector<DeviceSpec> devices;
  for (const std::string_view part : split_commas(text)) {
    const auto device = parse_one(part);
    if (!device) {
      throw UsageError(
          fmt::format("{}: '{}' is no device; allowed are cpu, a CUDA index (0 or cuda:0), "
                      "GPU-<uuid> and a PCI id (0000:3b:00.0)",
                      source, part));
    }
    devices.push_back(*device);
  }
  if (devices.size() > kMaxStages) {
    throw UsageError(fmt::format("{}: {} devices given, at most {} allowed", source, devices.size(),
                                 kMaxStages));
  }
  for (const DeviceSpec& device : devices) {
    if (device.kind != devices.front().kind) {
      throw UsageError(
          fmt::format("{}: '{}' and '{}' cannot be mixed: stages on CPU devices exchange f32, "
                      "stages on CUDA devices bf16",
                      source, devices.front().id, device.id));
    }
  }
  return devices;
}

std::vector<int> parse_stage_layers(std::string_view text, std::string_view source) {
  std::vector<int> counts;
  for (const std::string_view part : split_commas(text)) {
    const auto count = parse_int(part, 1, kMaxLayersPerStage);
    if (!count)
      throw UsageError(fmt::format("{}: '{}' is no layer count of at least 1", source, part));
    counts.push_back(*count);
  }
  return counts;
}

}  // namespace convoy
