#include "shared/control/gpu_sensor.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TEST(GpuSensor, AMachineWithoutADriverHasNone) {
  const auto sensor = GpuSensor::open();
  if (!sensor) GTEST_SKIP() << "no libnvidia-ml.so.1 here: nothing to ask";
  EXPECT_FALSE(sensor->sm_clock_mhz("GPU-00000000-0000-0000-0000-000000000000"));
}

TEST(ClockWatch, SeesNothingWithoutASensorOrCards) {
  ClockWatch nobody(nullptr, {"GPU-1"});
  EXPECT_TRUE(nobody.stop().empty());
  EXPECT_TRUE(nobody.stop().empty()) << "stopping twice";
  const auto sensor = GpuSensor::open();
  ClockWatch nothing(sensor.get(), {});
  EXPECT_TRUE(nothing.stop().empty());
}

}  // namespace
}  // namespace convoy
