#include "shared/plan/capacity.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TEST(CapacityCurve, IsALine) {
  const CapacityCurve curve{4, 1000, 10};
  EXPECT_EQ(curve.bytes_at(4), 1000U);
  EXPECT_EQ(curve.bytes_at(14), 1100U);
}

TEST(DeviceNeeds, StagesOfOneDeviceAddUp) {
  const std::vector<DeviceMemory> memory{{"a", 500}, {"b", {}}, {"a", 500}};
  const std::vector<CapacityCurve> curves{{2, 100, 3}, {2, 200, 0}, {2, 30, 4}};
  EXPECT_EQ(device_needs(memory, curves),
            (std::vector<DeviceNeed>{{{"a", 500}, {2, 130, 7}}, {{"b", {}}, {2, 200, 0}}}));
}

TEST(PageGroupsHeld, TheLeastDeviceDecides) {
  const std::vector<DeviceNeed> needs{{{"a", 1000}, {2, 100, 10}}, {{"b", 150}, {2, 100, 10}}};
  EXPECT_EQ(page_groups_held(needs, 100), 7);
  EXPECT_EQ(page_groups_held(needs, 6), 6);
}

TEST(PageGroupsHeld, ToTheByte) {
  const auto held = [](uint64_t available) {
    return page_groups_held(std::vector<DeviceNeed>{{{"a", available}, {2, 100, 10}}}, 50);
  };
  EXPECT_EQ(held(100), 2);
  EXPECT_EQ(held(109), 2);
  EXPECT_EQ(held(110), 3);
  EXPECT_EQ(held(580), 50);
  EXPECT_EQ(held(uint64_t{1} << 60), 50);
}

TEST(PageGroupsHeld, WhatDoesNotFitHasTheLeast) {
  const DeviceNeed need{{"a", 99}, {2, 100, 10}};
  EXPECT_FALSE(need.fits());
  EXPECT_EQ(page_groups_held(std::vector{need}, 50), 2);
}

TEST(PageGroupsHeld, DevicesWithoutKvOrWithoutAKnownLimitDecideNothing) {
  const std::vector<DeviceNeed> needs{{{"a", 100}, {2, 100, 0}}, {{"b", {}}, {2, 100, 10}}};
  EXPECT_TRUE(needs[0].fits());
  EXPECT_TRUE(needs[1].fits());
  EXPECT_EQ(page_groups_held(needs, 50), 50);
}

}  // namespace
}  // namespace convoy
