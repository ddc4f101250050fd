#include "coordinator/sampling/sampling_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const SamplingOptions& options) {
  const Status status = options.validate(100);
  EXPECT_FALSE(status.ok());
  return status.error();
}

TEST(SamplingOptions, AcceptsDefaultsAndEveryLimit) {
  EXPECT_TRUE(SamplingOptions{}.validate(1).ok());
  EXPECT_TRUE((SamplingOptions{.temperature = 0,
                               .top_k = -1,
                               .top_p = 0,
                               .min_p = 1,
                               .presence_penalty = 2,
                               .frequency_penalty = -2,
                               .repetition_penalty = 1e-6,
                               .logit_bias = {{0, INFINITY}, {99, -INFINITY}}})
                  .validate(100)
                  .ok());
}

TEST(SamplingOptions, RefusesByNameValueAndWhatIsAllowed) {
  EXPECT_EQ(refusal({.temperature = -0.5}), "temperature is -0.5; allowed is 0 to 1000000");
  EXPECT_EQ(refusal({.top_k = -2}),
            "top_k is -2; allowed is a positive integer, or 0 or -1 for no limit");
  EXPECT_EQ(refusal({.top_p = 1.5}), "top_p is 1.5; allowed is 0 to 1");
  EXPECT_EQ(refusal({.min_p = -0.1}), "min_p is -0.1; allowed is 0 to 1");
  EXPECT_EQ(refusal({.presence_penalty = 2.5}), "presence_penalty is 2.5; allowed is -2 to 2");
  EXPECT_EQ(refusal({.frequency_penalty = -3}), "frequency_penalty is -3; allowed is -2 to 2");
  EXPECT_EQ(refusal({.repetition_penalty = 0}),
            "repetition_penalty is 0; allowed is 0.000001 to 1000000");
  EXPECT_EQ(refusal({.logit_bias = {{100, 1}}}), "logit_bias names token 100; allowed are 0 to 99");
  EXPECT_EQ(refusal({.logit_bias = {{-1, 1}}}), "logit_bias names token -1; allowed are 0 to 99");
  EXPECT_THAT(refusal({.logit_bias = {{5, NAN}}}),
              AllOf(HasSubstr("logit_bias of token 5"), HasSubstr("nan")));
}

TEST(SamplingOptions, RefusesNaNAndInfinityEverywhere) {
  for (const double bad :
       {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    EXPECT_THAT(refusal({.temperature = bad}), HasSubstr("temperature"));
    EXPECT_THAT(refusal({.top_p = bad}), HasSubstr("top_p"));
    EXPECT_THAT(refusal({.min_p = bad}), HasSubstr("min_p"));
    EXPECT_THAT(refusal({.presence_penalty = bad}), HasSubstr("presence_penalty"));
    EXPECT_THAT(refusal({.frequency_penalty = bad}), HasSubstr("frequency_penalty"));
    EXPECT_THAT(refusal({.repetition_penalty = bad}), HasSubstr("repetition_penalty"));
  }
}

TEST(RandomSeed, DiffersAndSurvivesAJsonReader) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 100; ++i) {
    const uint64_t seed = random_seed();
    EXPECT_EQ(static_cast<uint64_t>(static_cast<double>(seed)), seed);
    EXPECT_LT(seed, uint64_t{1} << 53);
    seeds.insert(seed);
  }
  EXPECT_EQ(seeds.size(), 100U);
}

}  // namespace
}  // namespace convoy
