#include "coordinator/sampling/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/sampling/reference_sampler.h"

namespace convoy {
namespace {

using testing::random_logits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double exact_logprob(const std::vector<float>& logits, size_t valid, int32_t id) {
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < valid; ++i) largest = std::max(largest, static_cast<double>(logits[i]));
  double sum = 0.0;
  for (size_t i = 0; i < valid; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - largest - std::log(sum);
}

TEST(Logprobs, AreTheLogSoftmaxOfRawLogits) {
  for (const auto& [vocab, spread] :
       {std::pair{3, 1.0F}, {1025, 10.0F}, {248077, 0.01F}, {248077, 12.0F}}) {
    std::vector<float> logits = random_logits(1, vocab + 100, spread, 0x1p-10F);
    for (size_t i = static_cast<size_t>(vocab); i < logits.size(); ++i)
      logits[i] = 100.0F;  // padded rows
    const LogprobReport report = token_logprobs(logits, vocab, vocab - 1, 20);
    EXPECT_EQ(report.drawn.id, vocab - 1);
    const auto valid = static_cast<size_t>(vocab);
    EXPECT_NEAR(report.drawn.logprob, exact_logprob(logits, valid, vocab - 1), 3e-6);
    ASSERT_EQ(report.top.size(), static_cast<size_t>(std::min(20, vocab)));
    for (size_t i = 0; i < report.top.size(); ++i) {
      const auto& token = report.top[i];
      EXPECT_NEAR(token.logprob, exact_logprob(logits, valid, token.id), 3e-6);
      if (i == 0) continue;
      const float here = logits[static_cast<size_t>(token.id)],
                  above = logits[static_cast<size_t>(report.top[i - 1].id)];
      EXPECT_TRUE(here < above || (here == above && report.top[i - 1].id < token.id)) << i;
    }
  }
}

TEST(Logprobs, MaskedTokensAreImpossibleAndNotInTheTop) {
  const std::vector<float> logits = {-kInfinity, 1.0F, std::numeric_limits<float>::quiet_NaN(),
                                     1.0F};
  const LogprobReport report = token_logprobs(logits, 4, 0, 4);
  EXPECT_EQ(report.drawn.logprob, -kInfinity);
  EXPECT_EQ(token_logprobs(logits, 4, 2, 0).drawn.logprob, -kInfinity);
  ASSERT_EQ(report.top.size(), 2U);
  EXPECT_EQ(report.top[0].id, 1);
  EXPECT_EQ(report.top[1].id, 3);
  EXPECT_NEAR(report.top[1].logprob, -std::log(2.0), 1e-6);
}

TEST(Logprobs, InfiniteLogitsShareAndAllMaskedGivesNothing) {
  const LogprobReport infinite =
      token_logprobs(std::vector<float>{kInfinity, 3.0F, kInfinity}, 3, 1, 3);
  EXPECT_EQ(infinite.drawn.logprob, -kInfinity);
  EXPECT_NEAR(infinite.top.at(0).logprob, -std::log(2.0), 1e-6);
  const LogprobReport none = token_logprobs(std::vector<float>{-kInfinity, -kInfinity}, 2, 1, 2);
  EXPECT_EQ(none.drawn.logprob, -kInfinity);
  EXPECT_TRUE(none.top.empty());
}

TEST(Logprobs, OneSureTokenHasExactlyZero) {
  EXPECT_EQ(token_logprobs(std::vector<float>{-kInfinity, -7.5F}, 2, 1, 1).drawn.logprob, 0.0F);
}

}  // namespace
}  // namespace convoy
