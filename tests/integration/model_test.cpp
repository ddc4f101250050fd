// Damaged models through the command line, odd shapes over stages, and what a stage keeps in
// memory.
#include <csignal>
#include <fstream>
#include <functional>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

// The bundled tokenizer knows 4,096 ids.
constexpr int kVocabulary = 4096;

class ModelTest : public ConvoyTest {
 protected:
  void add_tokenizer() const {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(bundled_model_path() / name, model / name);
  }
  ProgramCall with_model(Words words) const {
    words.insert(words.end(), {"-m", model.native(), "--quiet"});
    return generate(std::move(words));
  }
  fs::path model = scratch.path() / "m";
};

struct Damage {
  const char* name;
  std::function<void(CheckpointImage&)> before;      // writing
  std::function<void(const fs::path& model)> after;  // writing
  std::vector<const char*> said;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

class DamagedModelTest : public ModelTest, public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedModelTest, IsRefusedByNameBeforeAnyWorkerStarts) {
  TinyCheckpointOptions options;
  options.vocab_size = kVocabulary;
  options.shards = 2;
  CheckpointImage image = make_tiny_checkpoint(options);
  if (GetParam().before) GetParam().before(image);
  write_checkpoint(image, model);
  add_tokenizer();
  if (GetParam().after) GetParam().after(model);
  for (const int stages : {1, 3}) {
    const Ended ended =
        run(with_model({"--json", "--devices", cpus(stages), "--prompt-ids", "1,2,3", "-n", "2"}));
    EXPECT_EXIT_CODE(ended, 1);
    for (const char* word : GetParam().said)
      EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr(word)) << stages << " stages";
    EXPECT_EQ(json::parse(ended.out).at("error").at("code").as_string(), "start_failed");
    EXPECT_FALSE(fs::exists(runtime));
  }
}

void shorten(const fs::path& file, uint64_t bytes) {
  fs::resize_file(file, fs::file_size(file) - bytes);
}

const char* const kLastTensor = "model.layers.3.mlp.down_proj.weight";

INSTANTIATE_TEST_SUITE_P(
    Damages, DamagedModelTest,
    ::testing::Values(
        Damage{"ShardShorterByOneByte",
               {},
               [](const fs::path& m) { shorten(m / shard_name(1, 2), 1); },
               {"model-00002-of-00002.safetensors"}},
        Damage{"ShardShorterBy1KiB",
               {},
               [](const fs::path& m) { shorten(m / shard_name(0, 2), 1024); },
               {"model-00001-of-00002.safetensors"}},
        Damage{"ShardMissing",
               {},
               [](const fs::path& m) { fs::remove(m / shard_name(1, 2)); },
               {"model-00002-of-00002.safetensors"}},
        Damage{"ShardEmpty",
               {},
               [](const fs::path& m) { fs::resize_file(m / shard_name(1, 2), 0); },
               {"model-00002-of-00002.safetensors"}},
        Damage{"HeaderLargerThanTheFile",
               {},
               [](const fs::path& m) {
                 write_file(m / shard_name(1, 2), std::string("\xFF\xFF\xFF\0\0\0\0\0{}", 10));
               },
               {"model-00002-of-00002.safetensors", "header"}},
        Damage{"WrongType",
               [](CheckpointImage& i) { i.tensor(kLastTensor).dtype = "I16"; },
               {},
               {kLastTensor, "I16"}},
        Damage{"WrongShape",
               [](CheckpointImage& i) {
                 std::swap(i.tensor(kLastTensor).shape[0], i.tensor(kLastTensor).shape[1]);
               },
               {},
               {kLastTensor}},
        Damage{"MissingTensor",
               [](CheckpointImage& i) { i.erase_tensor(kLastTensor); },
               {},
               {kLastTensor}},
        Damage{"OtherModelType",
               [](CheckpointImage& i) { i.text_config["model_type"] = "\"llama\""; },
               {},
               {"llama"}},
        Damage{"ConfigIsNoJson",
               {},
               [](const fs::path& m) { write_file(m / "config.json", "{"); },
               {"config.json"}},
        Damage{"ConfigMissing",
               {},
               [](const fs::path& m) { fs::remove(m / "config.json"); },
               {"config.json"}},
        Damage{"TokenizerMissing",
               {},
               [](const fs::path& m) { fs::remove(m / "tokenizer.json"); },
               {"tokenizer.json"}},
        Damage{"TokenizerCutOff",
               {},
               [](const fs::path& m) { shorten(m / "tokenizer.json", 100); },
               {"tokenizer.json"}},
        Damage{"IndexCutOff",
               {},
               [](const fs::path& m) { shorten(m / "model.safetensors.index.json", 10); },
               {"model.safetensors.index.json"}}),
    [](const auto& test) { return std::string(test.param.name); });

// The coordinator has read every header; a worker finds the shard gone.
TEST_F(ModelTest, AShardThatVanishesWhileLoadingIsAnErrorOfTheStage) {
  TinyCheckpointOptions options;
  options.vocab_size = kVocabulary;
  options.shards = 2;
  write_tiny_checkpoint(options, model);
  add_tokenizer();
  const Ended pool = run(convoy({"up", "p"}));
  EXPECT_EXIT_CODE(pool, 0);
  // Rank 0 is held in its first tensor until the worker has failed.
  ProgramCall call = with_model({"--attach", "p", "--prompt-ids", "1,2,3", "-n", "2"});
  call.environment["CONVOY_TEST_HOLD"] = "0:load:0";
  const pid_t worker = await_state(1, "waiting").pid;
  send_signal(worker, SIGSTOP);
  Process coordinator(call);
  EXPECT_TRUE(eventually([&] { return leftover_folders().size() == 2; }));
  fs::rename(model / shard_name(1, 2), model / "gone");
  send_signal(worker, SIGCONT);
  const Ended ended = coordinator.wait();
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr("stage 1 (pid " + std::to_string(worker)));
  // The pool has forgotten it and serves the next run.
  fs::rename(model / "gone", model / shard_name(1, 2));
  EXPECT_EXIT_CODE(run(with_model({"--attach", "p", "--prompt-ids", "1,2,3", "-n", "2"})), 0);
  EXPECT_EXIT_CODE(run(convoy({"down", "p"})), 0);
}

struct Shape {
  const char* name;
  TinyCheckpointOptions options;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

TinyCheckpointOptions odd_shape() {
  TinyCheckpointOptions options;
  options.layers = "lfllfl";
  options.vocab_size = kVocabulary;
  options.hidden_size = 48;
  options.intermediate_size = 80;
  options.num_attention_heads = 6;
  options.num_kv_heads = 1;
  options.head_dim = 32;
  options.linear_key_heads = 2;
  options.linear_value_heads = 6;
  options.linear_key_dim = 48;
  options.linear_value_dim = 16;
  options.mrope_section = "[2, 1, 1]";
  options.seed = 7;
  return options;
}

std::vector<Shape> shapes() {
  std::vector<Shape> list{{"Odd", odd_shape()},
                          {"OddTiedNestedF32Norms", odd_shape()},
                          {"LinearLayersOnly", odd_shape()},
                          {"FullLayersOnly", odd_shape()}};
  list[1].options.tied = true;
  list[1].options.nested = true;
  list[1].options.f32_norms = true;
  list[1].options.extras = true;
  list[1].options.shards = 3;
  list[2].options.layers = "lll";
  list[3].options.layers = "fff";
  return list;
}

class ShapeTest : public ModelTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(ShapeTest, GivesTheSameIdsOverOneTwoAndThreeStages) {
  write_tiny_checkpoint(GetParam().options, model);
  add_tokenizer();
  std::vector<int> prompt;
  for (int i = 0; i < 150; ++i) prompt.push_back((i * 37 + 11) % kVocabulary);
  std::vector<int> one;
  for (const int stages : {1, 2, 3}) {
    const auto object = json_of(
        run(with_model({"--json", "--devices", cpus(stages), "--prompt-ids", join_ids(prompt), "-n",
                        "40", "--ignore-eos", "--prefill-chunk", "64"})));
    const std::vector<int> ids = to_ids(object.at("token_ids"));
    EXPECT_EQ(ids.size(), 40U);
    if (stages == 1) one = ids;
    EXPECT_EQ(ids, one) << stages << " stages";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShapeTest, ::testing::ValuesIn(shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

// Kilobytes of a field of /proc/<pid>/status.
uint64_t status_kib(pid_t pid, const std::string& field) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  }
  return 0;
}

TEST_F(ModelTest, AStageKeepsItsOwnTensorsInMemoryAndNoOthers) {
  if (CONVOY_TEST_TIME_FACTOR > 1) GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
  TinyCheckpointOptions options;
  options.layers = "llllll";
  options.vocab_size = kVocabulary;
  options.hidden_size = 256;
  options.intermediate_size = 6000;
  options.linear_key_dim = 32;
  options.linear_value_dim = 32;
  write_tiny_checkpoint(options, model);
  add_tokenizer();
  ProgramCall call = with_model({"--devices", cpus(3), "--stage-layers", "1,4,1", "--prompt-ids",
                                 "1,2,3", "-n", "2", "-c", "64", "-t", "1"});
  call.environment["CONVOY_TEST_HOLD"] = "2:prefill:0";
  Process coordinator(call);
  await_state(2, "held");
  const uint64_t file_bytes = fs::file_size(model / "model.safetensors");
  ASSERT_GT(file_bytes, 55'000'000U);
  for (const int rank : {1, 2}) {
    const StageState s = stage(rank);
    const auto own = s.all.at("weight_bytes").to_number<uint64_t>();
    const uint64_t resident = (status_kib(s.pid, "RssAnon") + status_kib(s.pid, "RssFile") +
                               status_kib(s.pid, "RssShmem")) *
                              1024;
    RecordProperty("stage_" + std::to_string(rank) + "_own_bytes", std::to_string(own));
    RecordProperty("stage_" + std::to_string(rank) + "_resident_bytes", std::to_string(resident));
    EXPECT_GE(resident, own) << rank;
    // The program, its libraries, links and planes take less than 12 MB here.
    EXPECT_LT(resident, own + 12'000'000) << rank;
  }
  const auto four = stage(1).all.at("weight_bytes").to_number<uint64_t>();
  const auto one = stage(2).all.at("weight_bytes").to_number<uint64_t>();
  EXPECT_NEAR(static_cast<double>(four), 4.0 * static_cast<double>(one),
              0.01 * static_cast<double>(four));
  coordinator.signal(SIGINT);
  coordinator.wait();
}

}  // namespace
}  // namespace convoy::testing
