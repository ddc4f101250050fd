#include "shared/plan/visible_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convoy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

DeviceSpec card(const std::string& id, const std::string& uuid) {
  return {DeviceKind::cuda, id, uuid};
}
const DeviceSpec kFirst = card("cuda:0", "GPU-a");
const DeviceSpec kSecond = card("cuda:1", "GPU-b");
const DeviceSpec kThird = card("0000:3b:00.0", "GPU-c");
const DeviceSpec kFourth = card("cuda:3", "GPU-d");

TEST(VisibleDevices, TheOwnCardComesFirstAndNoneTwice) {
  EXPECT_THAT(visible_devices(kThird, {kFirst, kThird, kFirst}),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-c,GPU-a"));
  EXPECT_THAT(visible_devices(kThird, {}), ElementsAre("CUDA_VISIBLE_DEVICES=GPU-c"));
  EXPECT_THAT(visible_devices(kFirst, {card("GPU-a", "GPU-a")}),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-a"))
      << "two names of one card";
}

TEST(VisibleDevices, AStageSeesItsNeighbours) {
  const std::vector<DeviceSpec> stages{kFirst, kSecond, kThird, kFourth};
  EXPECT_THAT(visible_devices_of_stage(stages, 1),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-b,GPU-a,GPU-c"));
  EXPECT_THAT(visible_devices_of_stage(stages, 3),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-d,GPU-c,GPU-a"))
      << "the last hands over to the first";
  EXPECT_THAT(visible_devices_of_stage({kFirst, kSecond}, 1),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-b,GPU-a"));
  EXPECT_THAT(visible_devices_of_stage({kFirst, kFirst, kFirst}, 1),
              ElementsAre("CUDA_VISIBLE_DEVICES=GPU-a"));
}

TEST(VisibleDevices, WithoutUuidsTheParentsViewStays) {
  EXPECT_THAT(visible_devices({DeviceKind::cpu, "cpu"}, {}), IsEmpty());
  EXPECT_THAT(visible_devices(card("cuda:0", ""), {kSecond}), IsEmpty());
  EXPECT_THAT(visible_devices(kFirst, {card("cuda:1", "")}), IsEmpty());
}

}  // namespace
}  // namespace convoy
