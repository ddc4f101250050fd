#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace convoy {
namespace {

// Numbers of the logical processors this process may run on; empty when the system does not tell.
std::vector<int> allowed_processors() {
  // The kernel refuses a mask shorter than its own, whose length it does not tell.
  for (int limit = 1024; limit <= 1024 * 64; limit *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<size_t>(limit));
    if (mask == nullptr) return {};
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(limit));
    CPU_ZERO_S(bytes, mask);
    std::vector<int> found;
    const bool told = ::sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; told && cpu < limit; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) found.push_back(cpu);
    }
    CPU_FREE(mask);
    if (told) return found;
  }
  return {};
}

// A number from /sys/devices/system/cpu/cpuN/topology; false when it is not there.
bool read_topology(int cpu, const char* name, int& value) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name);
  return static_cast<bool>(file >> value);
}

}  // namespace

int physical_cores() {
  std::set<std::pair<int, int>> cores;
  int unknown = 0;
  for (const int cpu : allowed_processors()) {
    int package = 0;
    int core = 0;
    if (read_topology(cpu, "physical_package_id", package) && read_topology(cpu, "core_id", core)) {
      cores.emplace(package, core);
    } else {
      ++unknown;
    }
  }
  return std::max(1, static_cast<int>(cores.size()) + unknown);
}

}  // namespace convoy
