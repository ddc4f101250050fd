#include "shared/ipc/host_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

class ControlGroups : public testing::Test {
 protected:
  void write(const fs::path& file, const std::string& text) const {
    const fs::path path = root / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void write_v2(const fs::path& group, const std::string& limit, uint64_t usage,
                uint64_t cache) const {
    write(group / "memory.max", limit + "\n");
    write(group / "memory.current", std::to_string(usage) + "\n");
    write(group / "memory.stat", "anon 12\nactive_file " + std::to_string(cache / 2) +
                                     "\ninactive_file " + std::to_string(cache - cache / 2) +
                                     "\nshmem 5\n");
  }
  uint64_t left(const std::string& proc_cgroup) const {
    write("cgroup", proc_cgroup);
    return control_group_bytes(root / "cgroup", root);
  }

  TemporaryDirectory scratch;
  fs::path root = scratch.path();
};

TEST_F(ControlGroups, WithoutALimitThereIsNone) {
  EXPECT_EQ(left(""), kUnlimited);
  EXPECT_EQ(left("0::/\n"), kUnlimited);
  write_v2("", "max", 1000, 0);
  EXPECT_EQ(left("0::/\n"), kUnlimited);
  EXPECT_EQ(control_group_bytes(root / "nothing", root), kUnlimited);
}

TEST_F(ControlGroups, WhatAContainerUsesIsNotThereAnyMoreAndItsPageCacheIs) {
  write_v2("", "1000", 700, 250);
  EXPECT_EQ(left("0::/\n"), 550U);
  write_v2("", "1000", 1200, 0);
  EXPECT_EQ(left("0::/\n"), 0U);
}

TEST_F(ControlGroups, TheTightestOfAllGroupsAboveCounts) {
  write_v2("system.slice/convoy.service", "5000", 1000, 0);
  write_v2("system.slice", "3000", 2500, 0);
  EXPECT_EQ(left("0::/system.slice/convoy.service\n"), 500U);
  EXPECT_EQ(left("0::/elsewhere\n"), kUnlimited);
}

TEST_F(ControlGroups, VersionOneHasItsOwnNamesAndMayNameThePathOfTheHost) {
  write("memory/memory.limit_in_bytes", "2000\n");
  write("memory/memory.usage_in_bytes", "900\n");
  write("memory/memory.stat", "cache 1\ntotal_active_file 100\ntotal_inactive_file 200\n");
  EXPECT_EQ(left("9:name=systemd:/\n4:hugetlb,memory:/docker/0123\n1:cpu:/\n0::/\n"), 1400U);
  EXPECT_EQ(left("4:cpu,cpuacct:/docker/0123\n"), kUnlimited);
}

}  // namespace
}  // namespace convoy
