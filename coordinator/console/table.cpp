#include "coordinator/console/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace convoy {

std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         const std::vector<size_t>& left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      const bool left_aligned = i == 0 || std::find(left.begin(), left.end(), i) != left.end();
      line += left_aligned ? fmt::format("{:<{}}", row[i], widths[i])
                           : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // From 1023.95 on a unit would be printed as 1024.0.
  while (value >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_kv(uint64_t bytes, std::string_view dtype) {
  std::string text = format_bytes(bytes);
  if (bytes > 0 && !dtype.empty()) text += fmt::format(" {}", dtype);
  return text;
}

}  // namespace convoy
