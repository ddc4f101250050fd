#include "coordinator/sampling/penalties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace convoy {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> applied(const Penalties& penalties, std::vector<float> logits) {
  penalties.apply(logits);
  return logits;
}

TEST(Repetition, DividesPositiveAndMultipliesNegativeLogitsOfPromptAndOutputOnce) {
  Penalties penalties({.repetition_penalty = 2.0}, 5);
  penalties.observe_prompt(std::vector<int32_t>{0, 1, 0});
  penalties.observe_generated(2);
  penalties.observe_generated(2);
  penalties.observe_generated(1);
  EXPECT_THAT(applied(penalties, {3.0F, -3.0F, 1.0F, 4.0F, -kInfinity}),
              ElementsAre(1.5F, -6.0F, 0.5F, 4.0F, -kInfinity));
}

TEST(PresenceAndFrequency, SeeGeneratedTokensOnly) {
  Penalties penalties({.presence_penalty = 0.5, .frequency_penalty = 0.25}, 4);
  penalties.observe_prompt(std::vector<int32_t>{0, 1, 1, 1});
  penalties.observe_generated(1);
  for (int i = 0; i < 3; ++i) penalties.observe_generated(2);
  // 1 - 0.5 - 0.25; 1 - 0.5 - 3 * 0.25
  EXPECT_THAT(applied(penalties, {1.0F, 1.0F, 1.0F, 1.0F}), ElementsAre(1.0F, 0.25F, -0.25F, 1.0F));
}

TEST(Penalties, RepetitionComesBeforeFrequencyAndPresence) {
  Penalties penalties(
      {.presence_penalty = 1.0, .frequency_penalty = 0.5, .repetition_penalty = 2.0}, 2);
  penalties.observe_generated(0);
  penalties.observe_generated(0);
  // 1 / 2 - 2 * 0.5 - 1; the other order would multiply a negative number
  EXPECT_THAT(applied(penalties, {1.0F, 1.0F}), ElementsAre(-1.5F, 1.0F));
}

TEST(Penalties, ForgettingUndoesObserving) {
  Penalties penalties(
      {.presence_penalty = 1.0, .frequency_penalty = 1.0, .repetition_penalty = 2.0}, 3);
  penalties.observe_prompt(std::vector<int32_t>{1});
  penalties.observe_generated(0);
  penalties.observe_generated(1);
  penalties.forget_generated(1);
  penalties.forget_generated(0);
  EXPECT_THAT(applied(penalties, {4.0F, 4.0F, 4.0F}), ElementsAre(4.0F, 2.0F, 4.0F));
  EXPECT_DEATH(penalties.forget_generated(2), "generated");
}

TEST(Penalties, NegativeOnesEncourage) {
  Penalties penalties({.presence_penalty = -1.0, .frequency_penalty = -0.5}, 2);
  penalties.observe_generated(1);
  EXPECT_THAT(applied(penalties, {0.0F, 0.0F}), ElementsAre(0.0F, 1.5F));
}

TEST(Penalties, NeutralOnesChangeNothingAndPaddedIdsAreIgnored) {
  Penalties neutral({}, 4);
  neutral.observe_generated(1);
  EXPECT_THAT(applied(neutral, {1.0F, 1.0F}), ElementsAre(1.0F, 1.0F));
  Penalties penalties({.presence_penalty = 1.0}, 2);
  penalties.observe_generated(2);
  penalties.observe_prompt(std::vector<int32_t>{1 << 30});
  EXPECT_THAT(applied(penalties, {1.0F, 1.0F}), ElementsAre(1.0F, 1.0F));
}

}  // namespace
}  // namespace convoy
