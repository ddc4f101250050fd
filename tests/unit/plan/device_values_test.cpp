#include "shared/plan/device_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_code.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ParseMemoryLimits, DevicesAndUnits) {
  const auto limits = parse_memory_limits("0=20GiB,cuda:1=1.5MiB,2=7B,3=2TiB,4=3KiB", "x");
  ASSERT_EQ(limits.size(), 5U);
  EXPECT_EQ(limits[0].device.id, "cuda:0");
  EXPECT_EQ(limits[0].value, uint64_t{20} << 30);
  EXPECT_EQ(limits[1].device.id, "cuda:1");
  EXPECT_EQ(limits[1].value, uint64_t{3} << 19);
  EXPECT_EQ(limits[2].value, 7U);
  EXPECT_EQ(limits[3].value, uint64_t{2} << 40);
  EXPECT_EQ(limits[4].value, 3072U);
  EXPECT_EQ(parse_memory_limits("cpu=30MiB", "x")[0].device.kind, DeviceKind::cpu);
}

std::string refusal(std::string_view text) {
  try {
    parse_memory_limits(text, "--memory-limit");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(ParseMemoryLimits, RefusesWhatIsNoLimitAndSaysWhatIs) {
  for (const char* text : {"", "0", "0=", "=1GiB", "0=GiB", "0=20", "0=20GB", "0=20gib", "0=-1GiB",
                           "0=0GiB", "0=1e3GiB", "0=infGiB", "0=nanGiB", "0=0.1B", "0=99999TiB",
                           "0=1GiB,", "0=1GiB 1=2GiB", "tpu=1GiB", "0= 1GiB"})
    EXPECT_THAT(refusal(text), HasSubstr("--memory-limit")) << text;
  EXPECT_THAT(refusal("0=20GB"), AllOf(HasSubstr("0=20GB"), HasSubstr("GiB")));
  EXPECT_THAT(refusal("0=1GiB,cuda:0=2GiB"), HasSubstr("cuda:0 is named twice"));
}

TEST(ParseDeviceSpeeds, AreAnyPositiveNumbers) {
  const auto speeds = parse_device_speeds("0=1,1=0.5,2=3900", "x");
  ASSERT_EQ(speeds.size(), 3U);
  EXPECT_EQ(speeds[1].device.id, "cuda:1");
  EXPECT_EQ(speeds[1].value, 0.5);
  EXPECT_EQ(speeds[2].value, 3900);
  for (const char* text : {"0=0", "0=-1", "0=x", "0=1x", "0=inf", "0=nan", "0=1,0=2", "1"})
    EXPECT_THROW(parse_device_speeds(text, "x"), UsageError) << text;
}

}  // namespace
}  // namespace convoy
