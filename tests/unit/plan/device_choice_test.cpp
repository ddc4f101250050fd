#include "shared/plan/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace convoy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

DeviceOffer card(int index, uint64_t gib, const std::string& architecture = "sm_90") {
  return {{DeviceKind::cuda, "cuda:" + std::to_string(index)},
          "Card " + std::to_string(gib),
          architecture,
          gib * kGiB};
}

std::vector<std::string> ids(const DeviceChoice& choice) {
  std::vector<std::string> result;
  for (const DeviceSpec& device : choice.devices) result.push_back(device.id);
  return result;
}

// A run that needs `gib` in total, `first` of them on its first device.
std::vector<std::string> chosen(const std::vector<DeviceOffer>& offers, uint64_t gib,
                                uint64_t first = 0, bool mixed = false, size_t most = 64) {
  return ids(choose_devices(offers, mixed, most, [&](const std::vector<DeviceSpec>& devices) {
    std::map<std::string, uint64_t> bytes;
    for (const DeviceOffer& offer : offers) bytes[offer.device.id] = *offer.available_bytes;
    uint64_t sum = 0;
    for (const DeviceSpec& device : devices) sum += bytes.at(device.id);
    return sum >= gib * kGiB && bytes.at(devices.front().id) >= first * kGiB;
  }));
}

TEST(ChooseDevices, TheFewestThatHoldTheRun) {
  const std::vector<DeviceOffer> equal{card(0, 24), card(1, 24), card(2, 24), card(3, 24)};
  EXPECT_THAT(chosen(equal, 20), ElementsAre("cuda:0"));
  EXPECT_THAT(chosen(equal, 24), ElementsAre("cuda:0"));
  EXPECT_THAT(chosen(equal, 25), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(chosen(equal, 96), ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3"));
}

TEST(ChooseDevices, TheLargestOnesInTheirOrder) {
  const std::vector<DeviceOffer> cards{card(0, 8), card(1, 24), card(2, 16), card(3, 48)};
  EXPECT_THAT(chosen(cards, 40), ElementsAre("cuda:3"));
  EXPECT_THAT(chosen(cards, 60), ElementsAre("cuda:1", "cuda:3"));
  EXPECT_THAT(chosen(cards, 88), ElementsAre("cuda:1", "cuda:2", "cuda:3"));
}

TEST(ChooseDevices, LargestFirstWhereOnlyThatHolds) {
  const std::vector<DeviceOffer> cards{card(0, 8), card(1, 24), card(2, 48)};
  EXPECT_THAT(chosen(cards, 60, 40), ElementsAre("cuda:2", "cuda:1"));
}

TEST(ChooseDevices, ArchitecturesStayApartUnlessAllowed) {
  const std::vector<DeviceOffer> cards{card(0, 24, "sm_86"), card(1, 24, "sm_89"),
                                       card(2, 24, "sm_89")};
  EXPECT_THAT(chosen(cards, 40), ElementsAre("cuda:1", "cuda:2"));
  EXPECT_THAT(chosen(cards, 40, 0, true), ElementsAre("cuda:0", "cuda:1"));
  // Two of the older ones hold what takes three of the newer ones.
  EXPECT_THAT(chosen({card(0, 10), card(1, 10), card(2, 10), card(3, 14, "sm_86")}, 12),
              ElementsAre("cuda:3"));
}

TEST(ChooseDevices, WhereNothingHoldsAllOfTheLargestGroup) {
  const std::vector<DeviceOffer> cards{card(0, 24, "sm_86"), card(1, 16, "sm_89"),
                                       card(2, 16, "sm_89")};
  EXPECT_THAT(chosen(cards, 100), ElementsAre("cuda:1", "cuda:2"));
}

TEST(ChooseDevices, NoMoreThanTheModelHasLayers) {
  EXPECT_THAT(chosen({card(0, 1), card(1, 1), card(2, 1)}, 3, 0, false, 2),
              ElementsAre("cuda:0", "cuda:1"));
}

TEST(ChooseDevices, SaysWhichAndWhy) {
  const std::vector<DeviceOffer> cards{card(0, 24), card(1, 48)};
  const auto reason = [&](const std::vector<DeviceOffer>& offers, size_t enough) {
    return choose_devices(
               offers, false, 64,
               [&](const std::vector<DeviceSpec>& devices) { return devices.size() >= enough; })
        .reason;
  };
  EXPECT_THAT(reason(cards, 1), AllOf(HasSubstr("cuda:1 (Card 48)"), HasSubstr("1 of 2 GPUs")));
  EXPECT_THAT(reason(cards, 2), AllOf(HasSubstr("cuda:0 (Card 24), cuda:1 (Card 48)"),
                                      HasSubstr("2 of 2 GPUs hold together")));
  EXPECT_THAT(reason(cards, 3), HasSubstr("not even 2 of 2 GPUs"));
  std::vector<DeviceOffer> unknown{card(0, 24)};
  unknown[0].available_bytes.reset();
  EXPECT_THAT(reason(unknown, 1), HasSubstr("as far as the driver tells"));
}

}  // namespace
}  // namespace convoy
