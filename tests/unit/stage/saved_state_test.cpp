// A sequence that is saved over one split and goes on over another, against one that was never
// interrupted.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shared/state/model_fingerprint.h"
#include "shared/state/state_file.h"
#include "tests/unit/control/temporary_directory.h"
#include "tests/unit/stage/stage_pipeline.h"

namespace convoy {
namespace {

constexpr int kContext = 256;
constexpr int kGenerated = 12;

StagePipelineOptions options(std::vector<LayerRange> stages, KvDtype kv_dtype = KvDtype::f32) {
  return {.stages = std::move(stages),
          .limits = {.max_context_tokens = kContext,
                     .prefill_chunk_tokens = 128,
                     .lanes = 2,
                     .page_groups = 2 * kContext / kPageTokens,
                     .kv_dtype = kv_dtype},
          .load_format = LoadFormat::automatic,
          .device = "cpu",
          .instruction_set = "",
          .threads = 1,
          .graphs = false};
}

const std::filesystem::path kModel =
    std::filesystem::path(CONVOY_SOURCE_DIR) / "models/convoy-stories";

std::vector<int32_t> prompt(int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(10 + i * 37 % 3000);
  return ids;
}

// Prefills; gives the token that follows.
int32_t prefill(StagePipeline& model, Sequence& sequence, std::vector<int32_t> ids) {
  Sequence* const lane = &sequence;
  int last = 0;
  for (size_t at = 0; at < ids.size(); at += 128) {
    const int columns = static_cast<int>(std::min<size_t>(128, ids.size() - at));
    model.step({&lane, 1}, {&columns, 1}, std::span(ids).subspan(at, static_cast<size_t>(columns)),
               PositionClass::prompt);
    last = columns - 1;
  }
  return model.choose(last);
}

std::vector<int32_t> decode(StagePipeline& model, Sequence& sequence, int32_t next, int count) {
  Sequence* const lane = &sequence;
  std::vector<int32_t> ids;
  const int one = 1;
  for (int i = 0; i < count; ++i) {
    ids.push_back(next);
    model.step({&lane, 1}, {&one, 1}, {&next, 1}, PositionClass::generated);
    next = model.choose(0);
  }
  ids.push_back(next);
  return ids;
}

SequencePlace place_of(const Sequence& sequence) {
  return {.pages = sequence.page_groups(),
          .state_slot = sequence.state_slot(),
          .tokens = static_cast<uint32_t>(sequence.length())};
}

void save(StagePipeline& model, const Sequence& sequence, std::vector<int32_t> ids,
          int prompt_tokens, const std::filesystem::path& path) {
  StateFileWriter writer(path, model.config(),
                         {.kind = DeviceKind::cpu,
                          .kv_dtype = model.executor(0).limits().kv_dtype,
                          .model = model_fingerprint(model.checkpoint()),
                          .ids = std::move(ids),
                          .prompt_tokens = static_cast<uint32_t>(prompt_tokens)});
  for (size_t stage = 0; stage < model.stages(); ++stage) {
    StageExecutor& executor = model.executor(stage);
    const auto hashes =
        executor.save_state(model.stream(), place_of(sequence), writer.fd(), writer.layout());
    ASSERT_TRUE(hashes.ok()) << hashes.error();
    for (size_t i = 0; i < hashes.value().size(); ++i)
      writer.set_hash(executor.layers().begin + static_cast<int>(i), hashes.value()[i]);
  }
  writer.commit();
}

// The saved sequence in a fresh one; gives the token that follows.
int32_t load(StagePipeline& model, Sequence& sequence, const std::filesystem::path& path) {
  const StateFileReader reader(path, model.config(), DeviceKind::cpu,
                               model.executor(0).limits().kv_dtype,
                               model_fingerprint(model.checkpoint()));
  std::vector<BlockTableDelta> deltas;
  EXPECT_TRUE(sequence.extend(static_cast<int>(reader.description().tokens()), deltas).ok());
  model.update_tables(deltas);
  for (size_t stage = 0; stage < model.stages(); ++stage) {
    const Status status = model.executor(stage).load_state(model.stream(), place_of(sequence),
                                                           reader.fd(), reader.layout());
    EXPECT_TRUE(status.ok()) << status.error();
  }
  return reader.description().ids.back();
}

class SavedState : public ::testing::TestWithParam<std::tuple<int, KvDtype>> {};

TEST_P(SavedState, GoesOnOverAnotherSplitWithTheSameTokens) {
  const auto [length, kv_dtype] = GetParam();
  const TemporaryDirectory scratch;
  const auto path = scratch.path() / "state";
  const auto ids = prompt(length);

  StagePipeline three(kModel, options({{0, 3}, {3, 4}, {4, 12}}, kv_dtype));
  std::vector<int32_t> whole;
  {
    Sequence sequence(three.pages(), 0, kContext);
    const int32_t first = prefill(three, sequence, ids);
    auto begun = decode(three, sequence, first, 5);
    std::vector<int32_t> all = ids;
    all.insert(all.end(), begun.begin(), begun.end());
    save(three, sequence, all, length, path);
    whole = decode(three, sequence, begun.back(), kGenerated);
  }
  for (const auto& split : std::vector<std::vector<LayerRange>>{
           {{0, 12}}, {{0, 7}, {7, 12}}, {{0, 1}, {1, 11}, {11, 12}}}) {
    StagePipeline other(kModel, options(split, kv_dtype));
    // Another sequence has used pages and slots before, and holds some now.
    Sequence neighbour(other.pages(), 0, kContext);
    prefill(other, neighbour, prompt(100));
    Sequence sequence(other.pages(), 1, kContext);
    const int32_t next = load(other, sequence, path);
    EXPECT_EQ(decode(other, sequence, next, kGenerated), whole) << split.size() << " stages";
  }
}
INSTANTIATE_TEST_SUITE_P(PromptTokens, SavedState,
                         ::testing::Combine(::testing::Values(1, 59, 64, 123, 128, 200),
                                            ::testing::Values(KvDtype::f32, KvDtype::int8)),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) + "_" +
                                  kv_dtype_name(std::get<1>(test.param));
                         });

class SavedStateFile : public ::testing::TestWithParam<KvDtype> {};
INSTANTIATE_TEST_SUITE_P(KvDtypes, SavedStateFile, ::testing::Values(KvDtype::f32, KvDtype::int8),
                         [](const auto& test) { return kv_dtype_name(test.param); });

TEST_P(SavedStateFile, IsTheSameWhateverTheSplitAndThePages) {
  const TemporaryDirectory scratch;
  const auto bytes_of = [&](std::vector<LayerRange> stages, int other_tokens) {
    StagePipeline model(kModel, options(std::move(stages), GetParam()));
    // One that has ended leaves its keys and values in the pages that this one takes.
    if (Sequence ended(model.pages(), 0, kContext); true)
      prefill(model, ended, prompt(other_tokens));
    Sequence sequence(model.pages(), 1, kContext);
    const int32_t next = prefill(model, sequence, prompt(90));
    std::vector<int32_t> ids = prompt(90);
    ids.push_back(next);
    save(model, sequence, ids, 90, scratch.path() / "state");
    const StateSummary summary = read_state_summary(scratch.path() / "state");
    std::vector<uint64_t> hashes{summary.header.header_hash};
    for (const StateSection& section : summary.layers) hashes.push_back(section.hash);
    return hashes;
  };
  EXPECT_EQ(bytes_of({{0, 12}}, 10), bytes_of({{0, 2}, {2, 12}}, 200));
}

TEST(SavedStateLayers, AnAlteredLayerIsRefusedByTheStageThatReadsIt) {
  const TemporaryDirectory scratch;
  const auto path = scratch.path() / "state";
  StagePipeline model(kModel, options({{0, 5}, {5, 12}}));
  Sequence sequence(model.pages(), 0, kContext);
  const int32_t next = prefill(model, sequence, prompt(70));
  std::vector<int32_t> ids = prompt(70);
  ids.push_back(next);
  save(model, sequence, ids, 70, path);
  const uint64_t at = state_layout(model.config(), KvDtype::f32, 70).layers[6].offset + 5;
  UniqueFd file(::open(path.c_str(), O_RDWR));
  char byte = 0;
  ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
  byte = static_cast<char>(byte ^ 4);
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
  const StateFileReader reader(path, model.config(), DeviceKind::cpu, KvDtype::f32,
                               model_fingerprint(model.checkpoint()));
  EXPECT_TRUE(model.executor(0)
                  .load_state(model.stream(), place_of(sequence), reader.fd(), reader.layout())
                  .ok());
  const Status second = model.executor(1).load_state(model.stream(), place_of(sequence),
                                                     reader.fd(), reader.layout());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error(), ::testing::HasSubstr("layer 6: the bytes of a layer were altered"));
}

TEST(ModelFingerprint, TellsCheckpointsApart) {
  const auto of = [](const std::filesystem::path& path, LoadFormat format) {
    return model_fingerprint(Checkpoint::open(path, format));
  };
  const uint64_t bundled = of(kModel, LoadFormat::automatic);
  EXPECT_EQ(of(kModel, LoadFormat::automatic), bundled);
  EXPECT_NE(of(kModel, LoadFormat::dummy), bundled);
  EXPECT_NE(of(std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/hf/r2_gqa1_eps",
               LoadFormat::automatic),
            bundled);
}

}  // namespace
}  // namespace convoy
