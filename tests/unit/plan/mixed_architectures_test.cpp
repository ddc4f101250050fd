#include "shared/plan/mixed_architectures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_code.h"

namespace convoy {
namespace {

ListedDevice device(const std::string& id, const std::string& architecture) {
  return {id, "Card of " + id, "GPU-" + id, architecture};
}

TEST(MixedArchitectures, EqualOnesPass) {
  EXPECT_NO_THROW(refuse_mixed_architectures({}, "--devices"));
  EXPECT_NO_THROW(refuse_mixed_architectures({device("cuda:0", "sm_90")}, "--devices"));
  EXPECT_NO_THROW(refuse_mixed_architectures({device("cuda:0", "sm_90"), device("GPU-1", "sm_90")},
                                             "--devices"));
}

TEST(MixedArchitectures, UnequalOnesAreRefusedByName) {
  try {
    refuse_mixed_architectures(
        {device("cuda:0", "sm_90"), device("cuda:1", "sm_90"), device("cuda:2", "sm_86")},
        "CONVOY_DEVICES");
    FAIL() << "not refused";
  } catch (const UsageError& error) {
    for (const char* part : {"CONVOY_DEVICES", "cuda:0 (Card of cuda:0) is sm_90",
                             "cuda:2 (Card of cuda:2) is sm_86", "--allow-mixed-arch"})
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

}  // namespace
}  // namespace convoy
