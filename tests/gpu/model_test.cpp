// The bundled model on a CUDA device: equal bits however the work is cut, and logits as close to
// fp32 as bf16 arithmetic lets them be.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/gpu/first_device.h"
#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

constexpr int kContext = 2048;
constexpr int kLongPrompt = 1300;
constexpr int kGenerated = 24;

// Token ids of every part of the vocabulary, the same everywhere.
std::vector<int32_t> prompt_ids(int count, uint32_t seed = 1) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    ids.push_back(static_cast<int32_t>(seed >> 20));
  }
  return ids;
}

// CONVOY_TEST_MODEL: for programs that run where the source tree lies elsewhere.
std::string bundled_model() {
  const char* model = std::getenv("CONVOY_TEST_MODEL");
  return model != nullptr ? model : CONVOY_SOURCE_DIR "/models/convoy-stories";
}

struct RunOptions {
  int chunk = 512;
  bool graphs = false;
  int lanes = 1;
  std::string device = "cuda:0";
  KvDtype kv_dtype = KvDtype::bf16;
};

StagePipelineOptions pipeline_options(const RunOptions& run, int layers) {
  return {.stages = layer_by_layer(layers),
          .limits = {.max_context_tokens = kContext,
                     .prefill_chunk_tokens = run.chunk,
                     .lanes = run.lanes,
                     .page_groups = run.lanes * kContext / kPageTokens,
                     .kv_dtype = run.kv_dtype},
          .load_format = LoadFormat::automatic,
          .device = run.device,
          .instruction_set = "",
          .threads = 0,
          .graphs = run.graphs};
}

constexpr int kLayers = 12;

class Model {
 public:
  explicit Model(const RunOptions& run)
      : run_(run), pipeline_(bundled_model(), pipeline_options(run, kLayers)) {}

  // Per layer the residual of every column, prompt and then `generated` tokens (a fixed sequence).
  using Residuals = std::vector<std::vector<float>>;
  Residuals run(const std::vector<int32_t>& prompt, int generated) {
    Residuals all(kLayers);
    const auto keep = [&](size_t layer, std::span<const float> residual) {
      all[layer].insert(all[layer].end(), residual.begin(), residual.end());
    };
    Sequence sequence(pipeline_.pages(), 0, kContext);
    Sequence* const lane = &sequence;
    for (size_t at = 0; at < prompt.size();) {
      const size_t count = std::min(prompt.size() - at, static_cast<size_t>(run_.chunk));
      const int columns = static_cast<int>(count);
      pipeline_.step({&lane, 1}, {&columns, 1}, std::span(prompt).subspan(at, count),
                     PositionClass::prompt, {}, keep);
      at += count;
    }
    for (int i = 0; i < generated; ++i) {
      const int columns = 1;
      const int32_t id = 100 + i;
      pipeline_.step({&lane, 1}, {&columns, 1}, {&id, 1}, PositionClass::generated, {}, keep);
    }
    return all;
  }

  StagePipeline& pipeline() { return pipeline_; }

 private:
  RunOptions run_;
  StagePipeline pipeline_;
};

// Fails with the first layer and column that differ.
void expect_same(const Model::Residuals& got, const Model::Residuals& want,
                 const std::string& what) {
  const size_t hidden = 256;
  for (size_t layer = 0; layer < want.size(); ++layer) {
    ASSERT_EQ(got[layer].size(), want[layer].size());
    size_t wrong = 0;
    size_t first = 0;
    for (size_t i = want[layer].size(); i-- > 0;) {
      if (std::bit_cast<uint32_t>(got[layer][i]) == std::bit_cast<uint32_t>(want[layer][i]))
        continue;
      ++wrong;
      first = i;
    }
    ASSERT_EQ(wrong, 0U) << what << ": layer " << layer << ", first at column " << first / hidden
                         << " value " << first % hidden << ": " << got[layer][first] << ", not "
                         << want[layer][first];
  }
}

class CudaModel : public test::GpuTest, public testing::WithParamInterface<KvDtype> {
 protected:
  // `run` with the case's KV dtype.
  static RunOptions kept(RunOptions run = {}) {
    run.kv_dtype = GetParam();
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(KvDtypes, CudaModel,
                         testing::Values(KvDtype::bf16, KvDtype::int8, KvDtype::fp8),
                         [](const auto& dtype) { return std::string(kv_dtype_name(dtype.param)); });

TEST_P(CudaModel, BitsAreTheSameEveryTime) {
  Model model(kept());
  const auto prompt = prompt_ids(kLongPrompt);
  const auto first = model.run(prompt, kGenerated);
  for (int i = 0; i < 4; ++i) expect_same(model.run(prompt, kGenerated), first, "again");
}

TEST_P(CudaModel, ChunksChangeNoBit) {
  const auto prompt = prompt_ids(kLongPrompt);
  const auto want = Model(kept()).run(prompt, 4);
  for (const int chunk : {64, 128, 192, 1024, 1344})
    expect_same(Model(kept({.chunk = chunk})).run(prompt, 4), want,
                "chunk " + std::to_string(chunk));
}

TEST_P(CudaModel, GraphsChangeNoBit) {
  const auto prompt = prompt_ids(kLongPrompt);
  const auto want = Model(kept()).run(prompt, kGenerated);
  Model graphs(kept({.graphs = true}));
  for (int i = 0; i < 3; ++i) expect_same(graphs.run(prompt, kGenerated), want, "graphs");
}

TEST_P(CudaModel, ShortPromptsAreThePrefixesOfLongOnes) {
  const auto prompt = prompt_ids(200);
  Model model(kept());
  const auto whole = model.run(prompt, 0);
  for (const int length : {1, 2, 63, 64, 65, 127, 128, 129}) {
    auto want = whole;
    for (auto& layer : want) layer.resize(static_cast<size_t>(length) * 256);
    expect_same(model.run({prompt.begin(), prompt.begin() + length}, 0), want,
                "prompt of " + std::to_string(length));
  }
}

// Sixteen sequences of different lengths that decode together, against each of them alone.
TEST_P(CudaModel, LanesChangeNoBit) {
  constexpr int kLanes = 16;
  Model model(kept({.lanes = kLanes}));
  StagePipeline& pipeline = model.pipeline();
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> lanes;
  std::vector<std::vector<int32_t>> prompts;
  for (int lane = 0; lane < kLanes; ++lane) {
    sequences.push_back(std::make_unique<Sequence>(pipeline.pages(), lane, kContext));
    lanes.push_back(sequences.back().get());
    prompts.push_back(prompt_ids(1 + lane * 37 % 300, static_cast<uint32_t>(lane)));
    const int columns = static_cast<int>(prompts.back().size());
    pipeline.step({&lanes.back(), 1}, {&columns, 1}, prompts.back(), PositionClass::prompt);
  }
  const std::vector<int> one_each(kLanes, 1);
  std::vector<std::vector<float>> together(kLanes);
  for (int i = 0; i < 8; ++i) {
    const std::vector<int32_t> ids(kLanes, 100 + i);
    pipeline.step(lanes, one_each, ids, PositionClass::generated, {},
                  [&](size_t layer, std::span<const float> residual) {
                    if (layer + 1 < kLayers) return;
                    for (size_t lane = 0; lane < kLanes; ++lane) {
                      const auto column = residual.subspan(lane * 256, 256);
                      together[lane].insert(together[lane].end(), column.begin(), column.end());
                    }
                  });
  }
  sequences.clear();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto alone = model.run(prompts[lane], 8).back();
    const std::vector<float> decoded(alone.end() - 8 * 256, alone.end());
    ASSERT_EQ(decoded, together[lane]) << "lane " << lane;
  }
}

// Logits of every position of a prompt.
std::vector<float> all_logits(const RunOptions& run, const std::vector<int32_t>& prompt) {
  Model model(run);
  StagePipeline& pipeline = model.pipeline();
  Sequence sequence(pipeline.pages(), 0, kContext);
  Sequence* const lane = &sequence;
  const int columns = static_cast<int>(prompt.size());
  pipeline.step({&lane, 1}, {&columns, 1}, prompt, PositionClass::prompt);
  std::vector<int> every(prompt.size());
  std::iota(every.begin(), every.end(), 0);
  return pipeline.logits(every);
}

class CudaModelLogits : public test::GpuTest {};

// The CPU device's f32 logits equal transformers' fp32 ones within 2e-4 (tests/unit/stage). The
// bound is what transformers' own bf16 forward is off by on an H200, from
// scripts/fixtures/transformers_bf16_error.py.
TEST_F(CudaModelLogits, AreNoFurtherFromFp32ThanBf16Transformers) {
  constexpr double kTransformersRms = 0.0349;
  const auto prompt = prompt_ids(300, 7);
  const auto got = all_logits({}, prompt);
  const auto want = all_logits({.device = "cpu", .kv_dtype = KvDtype::f32}, prompt);
  double squares = 0;
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(got[i]) - want[i];
    squares += error * error;
    largest = std::max(largest, std::abs(error));
  }
  const double rms = std::sqrt(squares / static_cast<double>(want.size()));
  printf("logits: rms error %.5f, largest %.5f\n", rms, largest);
  EXPECT_LE(rms, kTransformersRms);
}

}  // namespace
}  // namespace convoy
