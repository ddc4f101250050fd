#include "coordinator/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "kernels/ops/gumbel.h"
#include "tests/unit/sampling/reference_sampler.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::random_logits;
using testing::reference_draw;
using testing::reference_kept;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMaximum = std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kManyDraws = 3000;

int32_t draw_once(const SamplingOptions& options, const std::vector<float>& logits,
                  uint64_t token = 0) {
  return Sampler(options, static_cast<int>(logits.size())).draw(logits, token).value();
}

/// Every id that comes up in many draws.
std::set<int32_t> ids_drawn(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options, static_cast<int>(logits.size()));
  std::set<int32_t> ids;
  for (uint64_t token = 0; token < kManyDraws; ++token)
    ids.insert(sampler.draw(logits, token).value());
  return ids;
}

// Agreement with the plain way.

TEST(Sampler, DrawsWhatAFullSortDrawsForEveryCombinationOfFilters) {
  int drawn = 0;
  for (const int vocab : {1, 31, 33, 1024, 1500, 3001}) {
    // Steps: ties everywhere, a few, hardly any. Spreads: one that top-p's first guess holds, one
    // that it does not.
    for (const auto& [spread, step] :
         {std::pair{6.0F, 1.0F}, {8.0F, 0x1p-4F}, {20.0F, 0x1p-12F}, {0.5F, 0x1p-3F}}) {
      const auto logits = random_logits(static_cast<uint32_t>(vocab) + 17, vocab, spread, step);
      for (const int64_t top_k : {0, 1, 7, 300, 1500}) {
        for (const double top_p : {1.0, 0.95, 0.3}) {
          for (const double min_p : {0.0, 0.02, 1.0}) {
            const SamplingOptions options{.temperature = 0.9,
                                          .top_k = top_k,
                                          .top_p = top_p,
                                          .min_p = min_p,
                                          .seed = static_cast<uint64_t>(vocab)};
            Sampler sampler(options, vocab);
            for (uint64_t token = 0; token < 3; ++token, ++drawn) {
              ASSERT_EQ(sampler.draw(logits, token).value(), reference_draw(options, logits, token))
                  << "vocab " << vocab << " spread " << spread << " step " << step << " top_k "
                  << top_k << " top_p " << top_p << " min_p " << min_p << " token " << token;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(drawn, 6 * 4 * 5 * 3 * 3 * 3);
}

TEST(Sampler, DrawsFromAFullVocabularyWhatAFullSortDraws) {
  constexpr int kVocab = 248077;
  const auto logits = random_logits(1, kVocab, 15.0F, 0x1p-10F);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 3.0},
        SamplingOptions{.top_k = 20, .top_p = 0.95}, SamplingOptions{.top_p = 0.9},
        SamplingOptions{.top_k = 100000}, SamplingOptions{.min_p = 0.01}}) {
    for (const uint64_t token : {uint64_t{5}, (uint64_t{1} << 40) + 5}) {
      EXPECT_EQ(draw_once(options, logits, token), reference_draw(options, logits, token));
    }
  }
}

// The noise contract.

TEST(Sampler, DrawsTheSameTokenWhateverItDrewBefore) {
  const auto logits = random_logits(2, 500, 4.0F, 0x1p-6F);
  const SamplingOptions options{.temperature = 1.2, .top_k = 50, .seed = 6};
  std::vector<int32_t> forward;
  Sampler sampler(options, 500);
  for (uint64_t token = 0; token < 100; ++token)
    forward.push_back(sampler.draw(logits, token).value());
  for (uint64_t token = 100; token-- > 0;) {
    EXPECT_EQ(sampler.draw(logits, token).value(), forward[token]);
    EXPECT_EQ(draw_once(options, logits, token), forward[token]);
  }
  EXPECT_GT(std::set<int32_t>(forward.begin(), forward.end()).size(), 20U);
}

TEST(Sampler, AnotherSeedDrawsOtherTokens) {
  const auto logits = random_logits(2, 500, 2.0F, 0x1p-6F);
  int equal = 0;
  for (uint64_t token = 0; token < 100; ++token) {
    equal += draw_once({.seed = 1}, logits, token) == draw_once({.seed = 2}, logits, token);
  }
  EXPECT_LT(equal, 20);
}

TEST(Sampler, AVerifyColumnCountsItsDraftsAndForgetsThemAfterwards) {
  const auto logits = random_logits(3, 64, 2.0F, 0x1p-6F);
  const SamplingOptions options{
      .presence_penalty = 1.5, .frequency_penalty = 0.5, .repetition_penalty = 1.3, .seed = 5};
  Sampler verify(options, 64);
  Sampler plain(options, 64);
  for (int32_t id = 0; id < 20; ++id) {
    verify.observe(id);
    plain.observe(id);
  }
  const std::vector<int32_t> drafts = {30, 31, 30, 5, 40, 41, 42, 43};
  int changed = 0;
  for (uint64_t token = 0; token < 200; ++token) {
    const int32_t without = verify.draw(logits, token).value();
    EXPECT_EQ(without, plain.draw(logits, token).value()) << "drafts of an earlier draw were kept";
    Sampler accepted = plain;
    for (const int32_t id : drafts) accepted.observe(id);
    const int32_t with = verify.draw(logits, token, drafts).value();
    EXPECT_EQ(with, accepted.draw(logits, token).value());
    changed += with != without;
  }
  EXPECT_GT(changed, 20);
}

TEST(Sampler, EqualScoresGoToTheLowestId) {
  // Among so many ids some pairs have the same 32 random bits.
  constexpr int kVocab = 248077;
  std::map<uint32_t, int32_t> first_with;
  std::vector<std::pair<int32_t, int32_t>> twins;
  for (int32_t id = 0; id < kVocab; ++id) {
    const auto [entry, added] = first_with.try_emplace(draw::random_word(0, 0, id), id);
    if (!added) twins.emplace_back(entry->second, id);
  }
  ASSERT_GE(twins.size(), 2U);
  for (const auto& [low, high] : twins) {
    std::vector<float> logits(kVocab, -kInfinity);
    logits[static_cast<size_t>(low)] = logits[static_cast<size_t>(high)] = 1.0F;
    for (const SamplingOptions& options :
         {SamplingOptions{}, SamplingOptions{.top_k = 2}, SamplingOptions{.top_p = 0.9},
          SamplingOptions{.min_p = 0.5}}) {
      EXPECT_EQ(draw_once(options, logits, 0), low);
    }
  }
}

// Greedy.

TEST(Greedy, TakesTheLowestIdAmongEqualsInEveryBlock) {
  std::vector<float> logits(300, -1.0F);
  for (const size_t id : {299U, 260U, 64U, 31U}) {
    logits[id] = 2.0F;
    EXPECT_EQ(draw_once({.greedy = true}, logits), static_cast<int32_t>(id));
  }
}

TEST(Greedy, IsWhatTemperatureZeroAndNearlyZeroMean) {
  const auto logits = random_logits(8, 2000, 3.0F, 0x1p-2F);
  const int32_t best = draw_once({.greedy = true}, logits);
  for (const double temperature : {0.0, 1e-300, 1e-45, 1e-9, 9.9e-6}) {
    for (uint64_t token = 0; token < 50; ++token) {
      EXPECT_EQ(draw_once({.temperature = temperature, .top_k = 5, .top_p = 0.9, .seed = 1}, logits,
                          token),
                best)
          << temperature;
    }
  }
}

TEST(Greedy, TheLowestSampledTemperatureStaysFinite) {
  // Far apart: the quotients overflow f32 unless they are bounded.
  const std::vector<float> logits = {-3e38F, 1.0F, 3e38F, -1.0F};
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1e-5}, SamplingOptions{.temperature = 1e-5, .top_p = 0.9},
        SamplingOptions{.temperature = 1e-5, .min_p = 0.5}}) {
    EXPECT_THAT(ids_drawn(options, logits), ElementsAre(2));
  }
}

// Filters.

TEST(TopK, TiesAtTheLastPlaceKeepTheLowestIdsAndExactlyK) {
  const std::vector<float> logits = {1.0F, 2.0F, 1.0F, 2.0F, 1.0F, 1.0F, 0.5F};
  EXPECT_THAT(ids_drawn({.top_k = 4}, logits), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_drawn({.top_k = 3}, logits), ElementsAre(0, 1, 3));
}

TEST(TopK, TiesKeepTheLowestIdsWhenTheBufferIsCutManyTimes) {
  std::vector<float> ascending(60000);
  for (size_t i = 0; i < ascending.size(); ++i)
    ascending[i] = static_cast<float>(i / 1000);  // 1,000 of each value
  std::vector<Candidate> top;
  select_top(ascending, 1500, top);
  std::sort(top.begin(), top.end(), ranks_before);
  ASSERT_EQ(top.size(), 1500U);
  EXPECT_EQ(top.front().id, 59000);
  EXPECT_EQ(top[999].id, 59999);
  EXPECT_EQ(top[1000].id, 58000);
  EXPECT_EQ(top.back().id, 58499);
  const std::vector<float> equal(60000, 1.0F);
  select_top(equal, 20, top);
  std::sort(top.begin(), top.end(), ranks_before);
  ASSERT_EQ(top.size(), 20U);
  EXPECT_EQ(top.back().id, 19);
}

TEST(TopK, OneIsGreedyAndZeroVAndMoreAreOff) {
  const auto logits = random_logits(5, 40, 1.0F, 0x1p-8F);
  EXPECT_THAT(ids_drawn({.top_k = 1}, logits), ElementsAre(draw_once({.greedy = true}, logits)));
  for (uint64_t token = 0; token < 300; ++token) {
    const int32_t off = draw_once({}, logits, token);
    for (const int64_t top_k : {int64_t{-1}, int64_t{40}, int64_t{41}, int64_t{1} << 40}) {
      ASSERT_EQ(draw_once({.top_k = top_k}, logits, token), off) << top_k;
    }
  }
}

TEST(TopP, ZeroAndTinyKeepOneAndOneIsOff) {
  const std::vector<float> logits = {1.0F, 2.0F, 2.0F, 0.0F};
  EXPECT_THAT(ids_drawn({.top_p = 0.0}, logits), ElementsAre(1));
  EXPECT_THAT(ids_drawn({.top_p = 1e-300}, logits), ElementsAre(1));
  EXPECT_THAT(ids_drawn({.top_k = 3, .top_p = 0.0}, logits), ElementsAre(1));
  EXPECT_THAT(ids_drawn({.top_p = 1.0}, logits), ElementsAre(0, 1, 2, 3));
}

TEST(TopP, KeepsTheTokenThatCrossesTheShareAndNoMore) {
  // Four equal tokens of a quarter each: the share is reached exactly at 0.25, 0.5 and 0.75.
  const std::vector<float> logits(4, 0.0F);
  EXPECT_THAT(ids_drawn({.top_p = 0.25}, logits), ElementsAre(0));
  EXPECT_THAT(ids_drawn({.top_p = 0.26}, logits), ElementsAre(0, 1));
  EXPECT_THAT(ids_drawn({.top_p = 0.5}, logits), ElementsAre(0, 1));
  EXPECT_THAT(ids_drawn({.top_p = 0.51}, logits), ElementsAre(0, 1, 2));
  // After top-k the share is of what top-k kept.
  EXPECT_THAT(ids_drawn({.top_k = 2, .top_p = 0.5}, logits), ElementsAre(0));
}

TEST(TopP, IsFoundInAFlatDistributionOfThousands) {
  const std::vector<float> logits(5000, 0.25F);
  EXPECT_EQ(reference_kept({.top_p = 0.5}, logits).size(), 2500U);
  Sampler sampler({.top_p = 0.5}, 5000);
  for (uint64_t token = 0; token < kManyDraws; ++token)
    ASSERT_LT(sampler.draw(logits, token).value(), 2500);
}

TEST(MinP, OneKeepsTheLargestAndItsEqualsAndZeroIsOff) {
  const std::vector<float> logits = {1.0F, 2.0F, 2.0F, 0.0F};
  EXPECT_THAT(ids_drawn({.min_p = 1.0}, logits), ElementsAre(1, 2));
  EXPECT_THAT(ids_drawn({.min_p = 0.0}, logits), ElementsAre(0, 1, 2, 3));
  // exp(-1) = 0.3679
  EXPECT_THAT(ids_drawn({.min_p = 0.3678}, logits), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids_drawn({.min_p = 0.3680}, logits), ElementsAre(1, 2));
  // Temperature comes first: exp(-1 / 2) = 0.6065
  EXPECT_THAT(ids_drawn({.temperature = 2.0, .min_p = 0.6064}, logits), ElementsAre(0, 1, 2));
}

// Bias, masks, padding.

TEST(Bias, IsAddedBeforeEverythingElse) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F};
  EXPECT_EQ(draw_once({.logit_bias = {{0, 2.5}}, .greedy = true}, logits), 0);
  EXPECT_EQ(draw_once({.logit_bias = {{0, 1.5}}, .greedy = true}, logits), 2);
  EXPECT_THAT(ids_drawn({.top_k = 2, .logit_bias = {{0, 1.5}}}, logits), ElementsAre(0, 2));
  // Penalties see the biased logit: 3 / 2 = 1.5 is below 2.
  Sampler sampler({.repetition_penalty = 2.0, .logit_bias = {{0, 3.0}}, .greedy = true}, 3);
  EXPECT_EQ(sampler.draw(logits, 0).value(), 0);
  sampler.observe(0);
  EXPECT_EQ(sampler.draw(logits, 0).value(), 2);
}

TEST(Bias, MinusInfinityBansAndPlusInfinityForces) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, 0.5F};
  for (const SamplingOptions& filters :
       {SamplingOptions{}, SamplingOptions{.top_k = 3}, SamplingOptions{.top_p = 0.99},
        SamplingOptions{.min_p = 0.01}}) {
    SamplingOptions options = filters;
    options.logit_bias = {{2, -kMaximum}, {1, -kMaximum}};
    EXPECT_THAT(ids_drawn(options, logits), ElementsAre(0, 3));
    options.logit_bias = {{0, kMaximum}};
    EXPECT_THAT(ids_drawn(options, logits), ElementsAre(0));
    options.logit_bias = {{0, kMaximum}, {3, kMaximum}};
    EXPECT_THAT(ids_drawn(options, logits), ElementsAre(0, 3));
  }
  EXPECT_EQ(draw_once({.logit_bias = {{3, kMaximum}}, .greedy = true}, logits), 3);
  EXPECT_EQ(draw_once({.logit_bias = {{2, -kMaximum}}, .greedy = true}, logits), 1);
}

TEST(Masks, StayWhateverTheBias) {
  const std::vector<float> logits = {-kInfinity, kNaN, -5.0F, kInfinity};
  const SamplingOptions options{.logit_bias = {{0, kMaximum}, {1, kMaximum}, {3, -kMaximum}}};
  EXPECT_THAT(ids_drawn(options, logits), ElementsAre(2));
}

TEST(Masks, AreNeverDrawnEvenWhereFiltersWouldKeepThem) {
  std::vector<float> logits(2000, -kInfinity);
  logits[3] = kNaN;
  logits[700] = -1e30F;
  logits[1999] = -1e30F;
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1e6}, SamplingOptions{.top_k = 10},
        SamplingOptions{.top_k = 1000}, SamplingOptions{.top_p = 0.999999},
        SamplingOptions{.min_p = 1e-300}}) {
    EXPECT_THAT(ids_drawn(options, logits), ElementsAre(700, 1999));
  }
}

TEST(Masks, AllMaskedIsAnErrorAndTheSamplerLives) {
  const std::vector<float> none = {-kInfinity, kNaN, -kInfinity};
  const std::vector<float> some = {-kInfinity, kNaN, 1.0F};
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.greedy = true}, SamplingOptions{.top_k = 2},
        SamplingOptions{.top_p = 0.5}, SamplingOptions{.min_p = 0.5},
        SamplingOptions{.presence_penalty = 1.0, .logit_bias = {{0, kMaximum}}}}) {
    Sampler sampler(options, 3);
    const auto drawn = sampler.draw(none, 0);
    ASSERT_FALSE(drawn.ok());
    EXPECT_THAT(drawn.error(), HasSubstr("every token is masked"));
    EXPECT_EQ(sampler.draw(some, 0).value(), 2);
  }
  Sampler banned({.logit_bias = {{0, -kMaximum}}}, 1);
  EXPECT_FALSE(banned.draw(std::vector<float>{1.0F}, 0).ok());
}

TEST(Padding, RowsAboveTheVocabularyAreNeverDrawn) {
  constexpr int kValid = 77;
  std::vector<float> logits = random_logits(6, 128, 1.0F, 0x1p-8F);
  for (size_t id = kValid; id < logits.size(); ++id) logits[id] = id % 2 == 0 ? 50.0F : kInfinity;
  for (SamplingOptions options :
       {SamplingOptions{}, SamplingOptions{.greedy = true}, SamplingOptions{.top_k = 90},
        SamplingOptions{.top_p = 0.99}, SamplingOptions{.min_p = 0.001}}) {
    options.logit_bias = {{76, 1.0}};
    options.presence_penalty = -2.0;
    Sampler sampler(options, kValid);
    sampler.observe(100);
    for (uint64_t token = 0; token < kManyDraws; ++token)
      ASSERT_LT(sampler.draw(logits, token).value(), kValid);
  }
  const SamplingOptions above{.logit_bias = {{kValid, 1.0}}};
  EXPECT_FALSE(above.validate(kValid).ok());
}

TEST(Padding, TooFewLogitsEndTheProcess) {
  Sampler sampler({}, 8);
  const std::vector<float> logits(7, 0.0F);
  EXPECT_DEATH((void)sampler.draw(logits, 0), "valid_vocab");
}

}  // namespace
}  // namespace convoy
