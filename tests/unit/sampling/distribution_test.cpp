// Whether draws have the distribution they promise. Seeds are fixed: a failure is a defect, not bad
// luck.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "coordinator/sampling/sampler.h"
#include "kernels/ops/gumbel.h"
#include "tests/unit/sampling/reference_sampler.h"

namespace convoy {
namespace {

using testing::random_logits;
using testing::reference_probabilities;

constexpr int kDraws = 40000;

// The value that chi-square with these degrees of freedom passes once in 10,000 (Wilson and
// Hilferty).
double chi_square_limit(int degrees) {
  const double d = degrees;
  return d * std::pow(1.0 - 2.0 / (9.0 * d) + 3.72 * std::sqrt(2.0 / (9.0 * d)), 3.0);
}

void expect_distribution(const std::vector<double>& expected, const std::vector<int>& counts) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0);
  double sum = 0.0;
  int cells = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "cell " << i << " was cut";
      continue;
    }
    const double mean = expected[i] * draws;
    ASSERT_GE(mean, 5.0) << "the test needs more draws for cell " << i;
    sum += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++cells;
  }
  if (cells > 1) {
    EXPECT_LT(sum, chi_square_limit(cells - 1)) << cells << " cells";
  }
}

std::vector<int> count_draws(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options, static_cast<int>(logits.size()));
  std::vector<int> counts(logits.size());
  for (uint64_t token = 0; token < kDraws; ++token)
    ++counts[static_cast<size_t>(sampler.draw(logits, token).value())];
  return counts;
}

const std::vector<float> kLogits = {1.5F, 0.2F,  -0.7F, 2.25F, 2.25F, 0.0F,
                                    1.0F, -1.5F, 0.9F,  3.0F,  -0.1F, 0.4F};

void expect_draws_of_softmax(SamplingOptions options) {
  for (const uint64_t seed : {0ULL, 1ULL, 0xdeadbeefcafef00dULL}) {
    options.seed = seed;
    expect_distribution(reference_probabilities(options, kLogits), count_draws(options, kLogits));
  }
}

TEST(Distribution, IsTheSoftmaxOfLogits) {
  expect_draws_of_softmax({});
}

TEST(Distribution, FollowsTemperature) {
  for (const double temperature : {0.6, 2.5, 1e6})
    expect_draws_of_softmax({.temperature = temperature});
}

TEST(Distribution, IsRenormalisedAfterTopK) {
  for (const int64_t top_k : {2, 4}) expect_draws_of_softmax({.top_k = top_k});
}

TEST(Distribution, IsRenormalisedAfterTopP) {
  for (const double top_p : {0.5, 0.8}) expect_draws_of_softmax({.top_p = top_p});
}

TEST(Distribution, IsRenormalisedAfterMinP) {
  expect_draws_of_softmax({.min_p = 0.1});
}

TEST(Distribution, IsRenormalisedAfterAllFiltersTogether) {
  expect_draws_of_softmax({.temperature = 1.3, .top_k = 9, .top_p = 0.9, .min_p = 0.1});
}

// More tokens than one block of the loops; cells of 250 tokens each.
TEST(Distribution, HoldsOverAVocabularyOfManyBlocks) {
  constexpr int kVocab = 5000, kCells = 20, kFewDraws = 4000;
  const std::vector<float> logits = random_logits(4, kVocab, 3.0F, 0x1p-8F);
  const SamplingOptions options{.seed = 11};
  std::vector<double> expected(kCells);
  const std::vector<double> probabilities = reference_probabilities(options, logits);
  for (size_t i = 0; i < kVocab; ++i) expected[i % kCells] += probabilities[i];
  Sampler sampler(options, kVocab);
  std::vector<int> counts(kCells);
  for (uint64_t token = 0; token < kFewDraws; ++token) {
    ++counts[static_cast<size_t>(sampler.draw(logits, token).value()) % kCells];
  }
  expect_distribution(expected, counts);
}

// Pairs of draws `lag` apart fill the cells of the product distribution.
TEST(Independence, OfDrawsAcrossTokenIndexes) {
  const std::vector<float> logits = {0.0F, 0.5F, 1.0F, 0.2F};
  const SamplingOptions options{.seed = 3};
  const std::vector<double> p = reference_probabilities(options, logits);
  Sampler sampler(options, 4);
  std::vector<int> ids;
  for (uint64_t token = 0; token < kDraws; ++token)
    ids.push_back(sampler.draw(logits, token).value());
  for (const size_t lag : {1U, 2U, 3U, 4U, 64U}) {
    std::vector<int> counts(16);
    std::vector<double> expected(16);
    for (size_t i = lag; i < ids.size(); ++i)
      ++counts[static_cast<size_t>(ids[i - lag] * 4 + ids[i])];
    for (size_t cell = 0; cell < 16; ++cell) expected[cell] = p[cell / 4] * p[cell % 4];
    expect_distribution(expected, counts);
  }
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0.0, aa = 0.0, bb = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

TEST(Independence, OfNoiseAcrossTokenIndexesIdsAndSeeds) {
  constexpr int32_t kNoises = 40000;
  std::vector<double> base, next_token, next_id, next_seed;
  for (int32_t i = 0; i < kNoises; ++i) {
    const auto token = static_cast<uint64_t>(i % 200);
    const int32_t id = i / 200;
    base.push_back(static_cast<double>(draw::gumbel_noise(8, token, id)));
    next_token.push_back(static_cast<double>(draw::gumbel_noise(8, token + 1, id)));
    next_id.push_back(static_cast<double>(draw::gumbel_noise(8, token, id + 1)));
    next_seed.push_back(static_cast<double>(draw::gumbel_noise(9, token, id)));
  }
  const double limit = 3.9 / std::sqrt(kNoises);
  EXPECT_LT(std::abs(correlation(base, next_token)), limit);
  EXPECT_LT(std::abs(correlation(base, next_id)), limit);
  EXPECT_LT(std::abs(correlation(base, next_seed)), limit);
}

TEST(GumbelNoise, HasMeanAndVarianceOfTheGumbelDistribution) {
  constexpr int kNoises = 200000;
  double sum = 0.0, squares = 0.0;
  for (int32_t id = 0; id < kNoises; ++id) {
    const auto noise = static_cast<double>(draw::gumbel_noise(1, 2, id));
    sum += noise;
    squares += noise * noise;
  }
  const double mean = sum / kNoises;
  EXPECT_NEAR(mean, 0.5772, 0.012);                             // Euler's constant
  EXPECT_NEAR(squares / kNoises - mean * mean, 1.6449, 0.035);  // pi^2 / 6
}

}  // namespace
}  // namespace convoy
