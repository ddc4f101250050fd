// What quantised keys and values cost: the next tokens that the bundled model would choose in
// stories it was not trained on.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>

#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

constexpr int kContext = 512;

// scripts/fixtures/make_held_out_ids.py: a story per line.
std::vector<std::vector<int32_t>> held_out_stories() {
  std::ifstream in(CONVOY_SOURCE_DIR "/tests/fixtures/held-out-ids.txt");
  std::vector<std::vector<int32_t>> stories;
  for (std::string line; std::getline(in, line);) {
    std::istringstream ids(line);
    stories.emplace_back(std::istream_iterator<int32_t>(ids), std::istream_iterator<int32_t>());
  }
  return stories;
}

// The likeliest token after every position of every story, each of which is read as it stands.
std::vector<int32_t> choices(KvDtype kv_dtype, const std::vector<std::vector<int32_t>>& stories) {
  StagePipeline model(CONVOY_SOURCE_DIR "/models/convoy-stories",
                      {.stages = {},
                       .limits = {.max_context_tokens = kContext,
                                  .prefill_chunk_tokens = kContext,
                                  .lanes = 1,
                                  .page_groups = kContext / kPageTokens,
                                  .kv_dtype = kv_dtype},
                       .instruction_set = "",
                       .threads = 2});
  std::vector<int32_t> chosen;
  for (const auto& story : stories) {
    Sequence sequence(model.pages(), 0, kContext);
    Sequence* const lane = &sequence;
    const int columns = static_cast<int>(story.size());
    model.step({&lane, 1}, {&columns, 1}, story, PositionClass::prompt);
    for (int column = 0; column < columns; ++column) chosen.push_back(model.choose(column));
  }
  return chosen;
}

TEST(KvQuality, Int8KeepsTheChoiceAt99PercentOfHeldOutPositions) {
  const auto stories = held_out_stories();
  const std::vector<int32_t> want = choices(KvDtype::f32, stories);
  const std::vector<int32_t> got = choices(KvDtype::int8, stories);
  ASSERT_GE(want.size(), 2000U);
  ASSERT_EQ(got.size(), want.size());
  const int kept = std::transform_reduce(want.begin(), want.end(), got.begin(), 0, std::plus<>(),
                                         [](int32_t a, int32_t b) { return a == b ? 1 : 0; });
  const double share = static_cast<double>(kept) / static_cast<double>(want.size());
  printf("int8 KV keeps the likeliest token at %d of %zu positions, %.2f %%\n", kept, want.size(),
         100 * share);
  EXPECT_GE(share, 0.99);
  // Rounding shows somewhere: the planes are not f32 by mistake.
  EXPECT_NE(got, want);
}

}  // namespace
}  // namespace convoy
