#include "kernels/ops/gumbel.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/draw/score_loops.h"

namespace convoy {
namespace {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, uint32_t key0, uint32_t key1) {
  const auto out =
      draw::philox4x32_10({{counter[0], counter[1], counter[2], counter[3]}}, key0, key1);
  return {out.word[0], out.word[1], out.word[2], out.word[3]};
}

// Random123, kat_vectors, "philox4x32 10".
TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomWord, UsesEveryBitOfSeedAndTokenIndex) {
  const uint64_t seed = 0x0123456789abcdefU, token = 0x1122334455667788U;
  EXPECT_EQ(draw::random_word(seed, token, 77),
            philox({0x55667788, 77, 0x11223344, 0}, 0x89abcdef, 0x01234567)[0]);
  const uint32_t word = draw::random_word(seed, token, 77);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(draw::random_word(seed ^ (uint64_t{1} << bit), token, 77), word) << bit;
    EXPECT_NE(draw::random_word(seed, token ^ (uint64_t{1} << bit), 77), word) << bit;
  }
}

// Words at every binade of both tails, and random ones.
std::vector<uint32_t> test_words() {
  std::vector<uint32_t> words = {0,          1,          2,          0x7fffffff, 0x80000000,
                                 0xfffffffe, 0xffffffff, 0x4afb0ccc, 0xb504f333};
  std::mt19937 random(5);
  for (int shift = 0; shift < 32; ++shift) {
    for (int i = 0; i < 300; ++i) {
      const auto word = static_cast<uint32_t>(random()) >> shift;
      words.push_back(word);
      words.push_back(~word);
    }
  }
  return words;
}

double exact_negative_log_uniform(uint32_t word) {
  const double from_one = (static_cast<double>(~word) + 0.5) * 0x1p-32;
  return word < 0x80000000U ? -std::log((static_cast<double>(word) + 0.5) * 0x1p-32)
                            : -std::log1p(-from_one);
}

TEST(NegativeLogUniform, IsWithinItsErrorBoundOfDouble) {
  for (const uint32_t word : test_words()) {
    const double exact = exact_negative_log_uniform(word);
    const double error =
        std::abs(static_cast<double>(draw::negative_log_uniform(word)) - exact) / exact;
    ASSERT_LE(error, 2e-7) << word;
  }
}

TEST(NaturalLog, IsWithinItsErrorBoundOfDouble) {
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) {
    const auto exponent = static_cast<int>(random() % 76) - 38;
    const float z =
        std::ldexp(1.0F + static_cast<float>(random() & 0x7fffffU) * 0x1p-23F, exponent);
    const double exact = std::log(static_cast<double>(z));
    const double error = std::abs(static_cast<double>(draw::natural_log(z)) - exact) /
                         std::max(1.0, std::abs(exact));
    ASSERT_LE(error, 1e-7) << z;
  }
  EXPECT_EQ(draw::natural_log(1.0F), 0.0F);
}

// gumbel_noise of a given word, whatever draws it.
float noise_of(uint32_t word) {
  return -draw::natural_log(draw::negative_log_uniform(word));
}

TEST(GumbelNoise, IsFiniteAndWithinItsErrorBoundAtBothEnds) {
  for (const uint32_t word : test_words()) {
    const float noise = noise_of(word);
    ASSERT_TRUE(std::isfinite(noise)) << word;
    ASSERT_LE(noise, draw::kLargestNoise);
    ASSERT_GE(noise, -3.2F);
    const double exact = -std::log(exact_negative_log_uniform(word));
    const double error =
        std::abs(static_cast<double>(noise) - exact) / std::max(1.0, std::abs(exact));
    ASSERT_LE(error, 2e-7) << word;
  }
  EXPECT_NEAR(noise_of(0xffffffffU), 33.0 * std::log(2.0), 1e-5);
  EXPECT_NEAR(noise_of(0), -std::log(33.0 * std::log(2.0)), 1e-6);
}

// Frozen: a change here changes what every seed says.
TEST(GumbelNoise, HasTheseBits) {
  EXPECT_EQ(draw::bits_of(draw::gumbel_noise(0, 0, 0)), 0x3dadb63fU);
  EXPECT_EQ(draw::bits_of(draw::gumbel_noise(42, 7, 248076)), 0x3f899fa1U);
  EXPECT_EQ(draw::bits_of(draw::gumbel_noise(0xfedcba9876543210U, 1ULL << 40, 151643)),
            0xbe94576fU);
  uint64_t hash = 0xcbf29ce484222325U;
  for (const uint32_t word : test_words())
    hash = (hash ^ draw::bits_of(noise_of(word))) * 0x100000001b3U;
  EXPECT_EQ(hash, 5568184263559995927U);
}

TEST(ExpWeight, IsWithinItsErrorBoundAndExactAtItsEnds) {
  std::mt19937 random(9);
  for (int i = 0; i < 300000; ++i) {
    const float x =
        -86.0F * static_cast<float>(random() & 0xffffffU) * 0x1p-24F * (i % 2 == 0 ? 1.0F : 0.01F);
    const double exact = std::exp(static_cast<double>(x));
    const double error = std::abs(static_cast<double>(draw::exp_weight(x)) - exact) / exact;
    ASSERT_LE(error, 1e-7) << x;
  }
  EXPECT_EQ(draw::exp_weight(0.0F), 1.0F);
  EXPECT_EQ(draw::exp_weight(-0.0F), 1.0F);
  EXPECT_GT(draw::exp_weight(-86.0F), 0.0F);
  EXPECT_EQ(draw::exp_weight(-86.1F), 0.0F);
  EXPECT_EQ(draw::exp_weight(-INFINITY), 0.0F);
  EXPECT_EQ(draw::exp_weight(NAN), 0.0F);
  EXPECT_EQ(draw::weight_mass(1.0F), uint64_t{1} << 40);
}

TEST(ScaledLogit, KeepsMasksAndSurvivesInfinities) {
  EXPECT_EQ(draw::scaled_logit(3.0F, 3.0F, 1e-5F), 0.0F);
  EXPECT_EQ(draw::scaled_logit(INFINITY, INFINITY, 1.0F), 0.0F);
  EXPECT_EQ(draw::scaled_logit(3.0F, INFINITY, 1.0F), -INFINITY);
  EXPECT_EQ(draw::scaled_logit(-INFINITY, 3.0F, 1.0F), -INFINITY);
  EXPECT_TRUE(std::isnan(draw::scaled_logit(NAN, 3.0F, 1.0F)));
  EXPECT_EQ(draw::scaled_logit(1.0F, 3.0F, 0.5F), -4.0F);
}

TEST(ScoreLoops, HaveEqualBitsForEveryInstructionSet) {
  constexpr int kCount = 1003;  // not a multiple of any vector
  std::vector<float> logits(kCount);
  std::vector<int32_t> ids(kCount);
  std::mt19937 random(3);
  for (int i = 0; i < kCount; ++i) {
    logits[static_cast<size_t>(i)] = static_cast<float>(random() & 0xffffU) * 0x1p-10F - 60.0F;
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(random() % 248077);
  }
  logits[5] = -INFINITY;
  logits[6] = NAN;
  for (const float temperature : {1.0F, 0.7F, 1e-5F, 1e6F}) {
    const LogitScale scale{.largest = 4.0F, .temperature = temperature};
    const NoiseKey key{.seed = 99, .token_index = 12};
    std::vector<float> portable(kCount), fast(kCount);
    portable_score_loops().weights(logits.data(), kCount, scale, portable.data());
    score_loops().weights(logits.data(), kCount, scale, fast.data());
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(draw::bits_of(portable[i]), draw::bits_of(fast[i])) << i;
    portable_score_loops().noisy(logits.data(), ids.data(), kCount, scale, key, portable.data());
    score_loops().noisy(logits.data(), ids.data(), kCount, scale, key, fast.data());
    for (size_t i = 0; i < kCount; ++i) {
      if (i == 6) continue;
      ASSERT_EQ(draw::bits_of(portable[i]), draw::bits_of(fast[i])) << i;
      ASSERT_EQ(fast[i], draw::scaled_logit(logits[i], scale.largest, temperature) +
                             draw::gumbel_noise(key.seed, key.token_index, ids[i]));
    }
    EXPECT_TRUE(std::isnan(portable[6]) && std::isnan(fast[6]));
  }
}

}  // namespace
}  // namespace convoy
