// The determinism contract inside one process: stages, chunks, threads, instruction sets and lane
// mixes never change a bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr int kContext = 512;

std::vector<int32_t> random_prompt(size_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 4000);
  return ids;
}

StagePipelineOptions options_of(KvDtype kv_dtype, std::vector<LayerRange> stages = {},
                                int lanes = 1, std::string instruction_set = "", int threads = 1) {
  return {.stages = std::move(stages),
          .limits = {.max_context_tokens = kContext,
                     .prefill_chunk_tokens = kContext,
                     .lanes = lanes,
                     .page_groups = lanes * kContext / kPageTokens,
                     .kv_dtype = kv_dtype},
          .instruction_set = std::move(instruction_set),
          .threads = threads};
}

// Prompt in chunks of `chunk`, then greedy tokens; returns the logits of every generated position.
std::vector<float> run(StagePipeline& model, const std::vector<int32_t>& prompt, size_t chunk,
                       int tokens) {
  Sequence sequence(model.pages(), 0, kContext);
  Sequence* const lane = &sequence;
  int last = 0;
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const auto part = std::span(prompt).subspan(begin, std::min(chunk, prompt.size() - begin));
    const int columns = static_cast<int>(part.size());
    model.step({&lane, 1}, {&columns, 1}, part, PositionClass::prompt);
    last = columns - 1;
  }
  std::vector<float> all;
  for (int i = 0; i < tokens; ++i) {
    const auto logits = model.logits({&last, 1});
    all.insert(all.end(), logits.begin(), logits.end());
    const auto next =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const int columns = 1;
    last = 0;
    model.step({&lane, 1}, {&columns, 1}, {&next, 1}, PositionClass::generated);
  }
  return all;
}

class Determinism : public ::testing::TestWithParam<KvDtype> {
 protected:
  template <typename... More>
  static StagePipelineOptions options(More... more) {
    return options_of(GetParam(), std::move(more)...);
  }
  static fs::path model_path() { return fs::path(CONVOY_SOURCE_DIR) / "models/convoy-stories"; }
  std::vector<float> reference(const std::vector<int32_t>& prompt) {
    StagePipeline model(model_path(), options());
    return run(model, prompt, kContext, 6);
  }
};
INSTANTIATE_TEST_SUITE_P(KvDtypes, Determinism, ::testing::Values(KvDtype::f32, KvDtype::int8),
                         [](const auto& dtype) { return kv_dtype_name(dtype.param); });

TEST_P(Determinism, ChunksOfEverySizeGiveTheSameBits) {
  const auto prompt = random_prompt(301, 1);
  const auto wanted = reference(prompt);
  for (const size_t chunk : {64U, 128U, 192U, 256U}) {
    StagePipeline model(model_path(), options());
    EXPECT_EQ(run(model, prompt, chunk, 6), wanted) << "chunk " << chunk;
  }
}

TEST_P(Determinism, SplitsGiveTheSameBits) {
  const auto prompt = random_prompt(130, 2);
  const auto wanted = reference(prompt);
  for (const auto& stages : {std::vector<LayerRange>{{0, 5}, {5, 9}, {9, 12}},
                             std::vector<LayerRange>{{0, 1}, {1, 12}}, layer_by_layer(12)}) {
    StagePipeline model(model_path(), options(stages));
    EXPECT_EQ(run(model, prompt, 128, 6), wanted) << stages.size() << " stages";
  }
}

TEST_P(Determinism, ThreadsAndInstructionSetsGiveTheSameBits) {
  const auto prompt = random_prompt(70, 3);
  const auto wanted = reference(prompt);
  for (const char* set : {"scalar", "avx2", "avx512"}) {
    std::unique_ptr<StagePipeline> model;
    try {
      model = std::make_unique<StagePipeline>(model_path(),
                                              options(std::vector<LayerRange>(), 1, set, 2));
    } catch (const std::exception&) {
      continue;  // this processor lacks it; the kernel tests say so
    }
    EXPECT_EQ(run(*model, prompt, 64, 3),
              std::vector<float>(wanted.begin(), wanted.begin() + 3 * 4096))
        << set;
  }
}

// Sixteen sequences of different lengths decode together and give what each gives alone.
TEST_P(Determinism, LanesDoNotSeeEachOther) {
  constexpr int kLanes = 16;
  constexpr int kTokens = 4;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (int lane = 0; lane < kLanes; ++lane) {
    prompts.push_back(
        random_prompt(static_cast<size_t>(1 + 17 * lane), 10U + static_cast<unsigned>(lane)));
    StagePipeline model(model_path(), options());
    alone.push_back(run(model, prompts.back(), kContext, kTokens));
  }

  StagePipeline model(model_path(), options(std::vector<LayerRange>(), kLanes));
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<Sequence*> sequences;
  std::vector<int32_t> next(kLanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    owners.push_back(std::make_unique<Sequence>(model.pages(), lane, kContext));
    sequences.push_back(owners.back().get());
    const auto l = static_cast<size_t>(lane);
    const int columns = static_cast<int>(prompts[l].size());
    model.step({&sequences.back(), 1}, {&columns, 1}, prompts[l], PositionClass::prompt);
    next[l] = model.choose(columns - 1);
  }
  const std::vector<int> ones(kLanes, 1);
  for (int token = 1; token < kTokens; ++token) {
    model.step(sequences, ones, next, PositionClass::generated);
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto l = static_cast<size_t>(lane);
      const auto logits = model.logits({&lane, 1});
      const auto wanted = std::span(alone[l]).subspan(static_cast<size_t>(token) * 4096, 4096);
      ASSERT_TRUE(std::equal(logits.begin(), logits.end(), wanted.begin()))
          << "lane " << lane << " token " << token;
      next[l] =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
  }
}

}  // namespace
}  // namespace convoy
