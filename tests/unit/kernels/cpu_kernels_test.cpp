// Runs the operations' test bodies on CPU devices of every instruction set the processor has.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"

namespace convoy::test {
namespace {

struct Variant {
  const char* instruction_set;
  int threads;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.instruction_set << " with " << variant.threads << " threads";
}

bool available(const Variant& variant) {
  for (const auto set :
       {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::scalar}) {
    if (std::strcmp(cpu::instruction_set_name(set), variant.instruction_set) == 0)
      return cpu::processor_has(set);
  }
  return false;
}

class CpuKernelTest : public testing::TestWithParam<std::tuple<Variant, KernelCase>> {};

TEST_P(CpuKernelTest, Holds) {
  const auto& [variant, kernel_case] = GetParam();
  if (!available(variant)) GTEST_SKIP() << "this processor has no " << variant.instruction_set;
  CpuDevice device({variant.threads, variant.instruction_set});
  kernel_case.run(device);
}

std::string name_of(const testing::TestParamInfo<CpuKernelTest::ParamType>& info) {
  const Variant& variant = std::get<0>(info.param);
  return std::string(std::get<1>(info.param).name) + "_" + variant.instruction_set + "_" +
         std::to_string(variant.threads);
}

INSTANTIATE_TEST_SUITE_P(Ops, CpuKernelTest,
                         testing::Combine(testing::Values(Variant{"avx512", 1}, Variant{"avx2", 1},
                                                          Variant{"scalar", 1},
                                                          Variant{"avx512", 3}),
                                          testing::ValuesIn(all_kernel_cases())),
                         name_of);

TEST(CpuKernels, EveryInstructionSetAndThreadCountGivesTheSameBits) {
  CpuDevice reference({1, "scalar"});
  const std::vector<NamedResult> want = all_results(reference);
  for (const Variant variant :
       {Variant{"avx2", 1}, Variant{"avx512", 1}, Variant{"scalar", 2}, Variant{"avx512", 4}}) {
    if (!available(variant)) continue;
    CpuDevice device({variant.threads, variant.instruction_set});
    const std::vector<NamedResult> got = all_results(device);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      expect_same_bits(got[i].values, want[i].values,
                       std::string(got[i].name) + " on " + variant.instruction_set + " with " +
                           std::to_string(variant.threads) + " threads");
    }
  }
}

std::vector<float> exponentials(cpu::InstructionSet set, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  cpu::kernels_of(set).exponential(x.data(), y.data(), static_cast<int>(x.size()));
  return y;
}

TEST(Exponential, IsWithinTwoUlpOfTheTruth) {
  Random random(3);
  std::vector<float> x = random.floats(200'000, -87.0F, 88.7F);
  for (const float value : random.floats(100'000, -1.0F, 1.0F)) x.push_back(value);
  for (float value = 1e-30F; value < 1.0F; value *= 3.0F) x.insert(x.end(), {value, -value});
  const std::vector<float> y = exponentials(cpu::choose_instruction_set(""), x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp(static_cast<double>(x[i]));
    const auto rounded = static_cast<float>(truth);
    const double ulp = static_cast<double>(std::nextafter(rounded, INFINITY)) - rounded;
    worst = std::max(worst, std::abs(y[i] - truth) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Exponential, HasTheRightLimits) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto set :
       {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::scalar}) {
    if (!cpu::processor_has(set)) continue;
    const std::vector<float> y = exponentials(set, {0.0F, -0.0F, -104.0F, -1e30F, -infinity, 88.8F,
                                                    1e30F, infinity, kNan, -87.5F, 88.7F});
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_EQ(y[1], 1.0F);
    for (size_t i = 2; i <= 4; ++i) EXPECT_EQ(y[i], 0.0F) << i;
    for (size_t i = 5; i <= 7; ++i) EXPECT_EQ(y[i], infinity) << i;
    EXPECT_TRUE(std::isnan(y[8]));
    EXPECT_NEAR(y[9], std::exp(-87.5), 3e-45);
    EXPECT_LT(y[10], infinity);
  }
}

}  // namespace
}  // namespace convoy::test
