// What --load-format dummy promises: a model that depends on its config only.
#include "shared/stage/random_weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>

#include "kernels/ops/random_values.h"
#include "shared/stage/weights.h"
#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

const std::filesystem::path kBundled =
    std::filesystem::path(CONVOY_SOURCE_DIR) / "models/convoy-stories";

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// Element `index` of a matrix.
uint16_t expected(const std::string& name, uint64_t index) {
  const RandomRange range = random_range(name, true);
  float values[draw::kRandomGroup];
  draw::random_values(random_seed(name), index / 4, range.centre, range.spread, values);
  return to_bf16(values[index % 4]);
}

TEST(RandomWeights, EveryElementComesFromItsTensorsNameAndItsPlace) {
  const Checkpoint checkpoint = Checkpoint::open(kBundled, LoadFormat::dummy);
  const ModelConfig& config = checkpoint.config();
  const auto device = make_cpu_device({.threads = 2, .instruction_set = ""});
  const auto stream = device->make_stream();
  uint64_t loaded = 0;
  const WeightSet weights(*device, *stream, checkpoint, layer_weight_table(config, 3), "layers.3.",
                          [&](uint64_t bytes) { loaded += bytes; });
  EXPECT_EQ(loaded, checkpoint.layer_bytes(3));
  const LinearWeight qkv = weights.linear("qkv");
  const int q_rows = 2 * config.num_attention_heads * config.head_dim;
  // The layout of packed weights on a CPU: panels of 64 rows, [in][64].
  const auto at = [&](int row, int column) {
    return qkv.data[(static_cast<size_t>(row / 64) * static_cast<size_t>(qkv.in_features) +
                     static_cast<size_t>(column)) *
                        64 +
                    static_cast<size_t>(row % 64)];
  };
  for (const int row : {0, 63, 64, 777}) {
    for (const int column : {0, 1, 255}) {
      const auto index = static_cast<uint64_t>(row * config.hidden_size + column);
      EXPECT_EQ(at(row, column), expected("layers.3.self_attn.q_proj.weight", index));
      if (row < config.num_kv_heads * config.head_dim) {
        EXPECT_EQ(at(q_rows + row, column), expected("layers.3.self_attn.k_proj.weight", index));
      }
    }
  }
  for (int i = 0; i < config.head_dim; ++i) EXPECT_LE(std::abs(weights.vector("q_norm")[i]), 0.1F);
}

TEST(RandomWeights, TablesHoldTheSameValuesAsStored) {
  const Checkpoint checkpoint = Checkpoint::open(kBundled, LoadFormat::dummy);
  const auto device = make_cpu_device({});
  const auto stream = device->make_stream();
  const WeightSet root(*device, *stream, checkpoint, root_weight_table(checkpoint.config()), "",
                       {});
  const uint64_t count = checkpoint.embedding_bytes() / 2;
  for (const uint64_t index : {uint64_t{0}, uint64_t{4097}, count - 1})
    EXPECT_EQ(root.table("embedding")[index], expected("embed_tokens.weight", index));
}

std::vector<float> logits_of(std::vector<LayerRange> stages) {
  StagePipeline model(kBundled, {.stages = std::move(stages),
                                 .limits = {.max_context_tokens = 128,
                                            .prefill_chunk_tokens = 128,
                                            .lanes = 1,
                                            .page_groups = 2},
                                 .load_format = LoadFormat::dummy,
                                 .instruction_set = "",
                                 .threads = 2});
  Sequence sequence(model.pages(), 0, 128);
  Sequence* const lane = &sequence;
  std::vector<int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back(i * 37 % 4000);
  const int columns = 70;
  model.step({&lane, 1}, {&columns, 1}, ids, PositionClass::prompt);
  const int last = columns - 1;
  return model.logits({&last, 1});
}

TEST(RandomWeights, EverySplitIsTheSameModelAndItsLogitsAreSane) {
  const std::vector<float> whole = logits_of({});
  EXPECT_EQ(logits_of({{0, 5}, {5, 12}}), whole);
  double squares = 0;
  for (const float logit : whole) {
    ASSERT_TRUE(std::isfinite(logit));
    squares += static_cast<double>(logit) * logit;
  }
  const double spread = std::sqrt(squares / static_cast<double>(whole.size()));
  EXPECT_GT(spread, 0.05);
  EXPECT_LT(spread, 20);
}

TEST(RandomWeights, RangesFollowTheMeaningOfATensor) {
  EXPECT_EQ(random_range("layers.0.linear_attn.norm.weight", false).centre, 1.0F);
  EXPECT_EQ(random_range("layers.0.input_layernorm.weight", false).centre, 0.0F);
  EXPECT_LT(random_range("layers.0.linear_attn.dt_bias", false).centre, 0.0F);
  EXPECT_NEAR(random_range("lm_head.weight", true).spread / std::sqrt(3.0), 0.02, 1e-6);
  EXPECT_NE(random_seed("layers.1.linear_attn.A_log"), random_seed("layers.2.linear_attn.A_log"));
}

}  // namespace
}  // namespace convoy
