// Tiny random checkpoints against Hugging Face transformers (fp32 on the CPU), after every layer.
// scripts/fixtures/make_hf_fixtures.py made the fixtures and says how far fp32 is from fp64 in
// each.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/fixtures/safetensors_fixture.h"
#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  float tolerance;  // a few times what fp32 itself is from fp64
};

class HfReference : public ::testing::TestWithParam<Case> {
 protected:
  HfReference()
      : folder_(fs::path(CONVOY_SOURCE_DIR) / "tests/fixtures/hf" / GetParam().name),
        fixture_(read_fixture(folder_ / "reference.safetensors")) {}

  const FixtureTensor& tensor(const std::string& name) const {
    return fixture_tensor(fixture_, name);
  }

  static StagePipelineOptions options(int layers) {
    return {.stages = layer_by_layer(layers),
            .limits = {.max_context_tokens = 192,
                       .prefill_chunk_tokens = 192,
                       .lanes = 1,
                       .page_groups = 3},
            .instruction_set = "",
            .threads = 1};
  }

  void expect_rows(const std::vector<int32_t>& rows, std::span<const float> actual,
                   const FixtureTensor& wanted, size_t width, const std::string& what) const {
    float worst = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < width; ++i) {
        worst = std::max(worst, std::abs(actual[static_cast<size_t>(rows[r]) * width + i] -
                                         wanted.f32[r * width + i]));
      }
    }
    EXPECT_LE(worst, GetParam().tolerance) << what;
  }

  fs::path folder_;
  Fixture fixture_;
};

TEST_P(HfReference, EveryLayerOfEveryPromptMatches) {
  const int layers = read_model_config(folder_).num_layers;
  for (const std::string prompt : {"p1", "p2", "p65", "p150"}) {
    StagePipeline model(folder_, options(layers));
    const auto& ids = tensor(prompt + ".ids").i32;
    const auto& rows = tensor(prompt + ".rows").i32;
    Sequence sequence(model.pages(), 0, 192);
    Sequence* const lane = &sequence;
    const int columns = static_cast<int>(ids.size());
    model.step({&lane, 1}, {&columns, 1}, ids, PositionClass::prompt,
               tensor(prompt + ".positions").i32,
               [&](size_t stage, std::span<const float> residual) {
                 const std::string name = prompt + ".residual." + std::to_string(stage);
                 expect_rows(rows, residual, tensor(name),
                             static_cast<size_t>(model.config().hidden_size), name);
               });
    const auto& logit_rows = tensor(prompt + ".logit_rows").i32;
    const auto& wanted = tensor(prompt + ".logits").f32;
    const std::vector<float> logits =
        model.logits(std::vector<int>(logit_rows.begin(), logit_rows.end()));
    ASSERT_EQ(logits.size(), wanted.size());
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::abs(logits[i] - wanted[i]));
    EXPECT_LE(worst, 2 * GetParam().tolerance) << prompt << " logits";
  }
}

TEST_P(HfReference, GreedyTokensMatchThroughDecodeSteps) {
  StagePipeline model(folder_, options(read_model_config(folder_).num_layers));
  const auto& ids = tensor("p150.ids").i32;
  const auto& greedy = tensor("p150.greedy").i32;
  const auto& positions = tensor("p150.greedy_positions").i32;
  Sequence sequence(model.pages(), 0, 192);
  Sequence* const lane = &sequence;
  int columns = static_cast<int>(ids.size());
  model.step({&lane, 1}, {&columns, 1}, ids, PositionClass::prompt, tensor("p150.positions").i32);
  int32_t next = model.choose(columns - 1);
  columns = 1;
  for (size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_EQ(next, greedy[i]) << "token " << i;
    const std::vector<int32_t> rope{positions[i], positions[greedy.size() + i],
                                    positions[2 * greedy.size() + i]};
    model.step({&lane, 1}, {&columns, 1}, {&next, 1}, PositionClass::generated, rope);
    next = model.choose(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, HfReference,
                         ::testing::Values(Case{"r1_head256_tied", 6e-4F},
                                           Case{"r2_gdn128_gqa6", 4e-4F},
                                           Case{"r2_gqa1_eps", 1e-4F},
                                           Case{"r3_outer_mrope", 5e-4F},
                                           Case{"r4_old_rope_f32_shards", 5e-4F}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace convoy
