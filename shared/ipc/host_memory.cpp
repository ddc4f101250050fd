#include "shared/ipc/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Files of one version of control groups.
struct Names {
  const char* limit;
  const char* usage;
  // In memory.stat: page cache, which the kernel gives up before it kills.
  const char* active_file;
  const char* inactive_file;
};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
                          "total_inactive_file"};
constexpr Names kVersion2{"memory.max", "memory.current", "active_file", "inactive_file"};

// Nothing where there is no such file or no number in it ("max").
std::optional<uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  uint64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

uint64_t cached_bytes(const fs::path& group, const Names& names) {
  std::ifstream in(group / "memory.stat");
  std::string key;
  uint64_t value = 0;
  uint64_t sum = 0;
  while (in >> key >> value) {
    if (key == names.active_file || key == names.inactive_file) sum += value;
  }
  return sum;
}

uint64_t left_in(const fs::path& group, const Names& names) {
  const auto limit = number_in(group / names.limit);
  if (!limit) return kUnlimited;
  const uint64_t usage = number_in(group / names.usage).value_or(0);
  const uint64_t used = usage - std::min(usage, cached_bytes(group, names));
  return *limit - std::min(*limit, used);
}

// `path` and every group above it. In a container the path may be the host's, and only the topmost
// is there.
uint64_t least_left(const fs::path& mount, std::string_view path, const Names& names) {
  uint64_t left = left_in(mount, names);
  for (fs::path group = fs::path(path).relative_path(); !group.empty(); group = group.parent_path())
    left = std::min(left, left_in(mount / group, names));
  return left;
}

uint64_t free_pages() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:"))
      return std::stoull(line.substr(line.find(':') + 1)) * 1024;
  }
  return kUnlimited;
}

}  // namespace

uint64_t control_group_bytes(const fs::path& proc_cgroup, const fs::path& mounts) {
  uint64_t left = kUnlimited;
  std::ifstream in(proc_cgroup);
  for (std::string line; std::getline(in, line);) {  // number:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (controllers == ",,") {
      left = std::min(left, least_left(mounts, path, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, least_left(mounts / "memory", path, kVersion1));
    }
  }
  return left;
}

uint64_t available_host_bytes() {
  return std::min(free_pages(), control_group_bytes("/proc/self/cgroup", "/sys/fs/cgroup"));
}

}  // namespace convoy
