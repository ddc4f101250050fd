// How much memory this process can still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace convoy {

/// What this machine has left for new pages, at most what the limits of its control groups (a
/// container's, a service's) leave; the largest number where nothing tells.
uint64_t available_host_bytes();

/// What the limits of the process's memory control groups, versions 1 and 2, leave: for each group
/// up to the topmost its limit less what it uses, page cache of files not counted. The largest
/// number where there is no limit. `proc_cgroup` is a file like /proc/self/cgroup, `mounts` the
/// folder with the groups of version 2 and, in memory/, those of version 1.
uint64_t control_group_bytes(const std::filesystem::path& proc_cgroup,
                             const std::filesystem::path& mounts);

}  // namespace convoy
