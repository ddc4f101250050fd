#include "shared/model/checkpoint.h"

#include <cstring>
#include <fstream>

#include "shared/model/text_tensors.h"
#include "tests/unit/model/checkpoint_writer.h"
#include "tests/unit/model/refusal.h"

namespace convoy::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kBundled =
    std::filesystem::path(CONVOY_SOURCE_DIR) / "models/convoy-stories";

std::vector<RequiredTensor> all_tensors(const ModelConfig& config) {
  std::vector<RequiredTensor> tensors = root_tensors(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::vector<RequiredTensor> more = layer_tensors(config, layer);
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  return tensors;
}

std::string mapped_text(const MappedTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), tensor.bytes()};
}

/// How many mappings of this process lie over files under `directory`.
int mappings_under(const std::filesystem::path& directory) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(directory.string()) != std::string::npos) ++count;
  }
  return count;
}

// ---- what opens, and gives the bytes that were written ----

TEST(Checkpoint, OpensEveryLayoutAndGivesTheBytesOfEveryTensor) {
  for (int variant = 0; variant < 32; ++variant) {
    const TinyCheckpointOptions options{.tied = (variant & 1) != 0,
                                        .nested = (variant & 2) != 0,
                                        .f32_norms = (variant & 4) != 0,
                                        .extras = (variant & 8) != 0,
                                        .shards = (variant & 16) != 0 ? 3 : 1};
    const TemporaryDirectory scratch;
    CheckpointImage image = make_tiny_checkpoint(options);
    write_checkpoint(image, scratch.path());
    const Checkpoint checkpoint = Checkpoint::open(scratch.path());
    const std::string prefix = options.nested ? "model.language_model." : "model.";
    uint64_t total = 0;
    for (const RequiredTensor& required : all_tensors(checkpoint.config())) {
      const std::string& name = required.name;
      const std::string full = name == "lm_head.weight" ? name : prefix + name;
      const MappedTensor tensor = checkpoint.map(name);
      EXPECT_EQ(mapped_text(tensor), image.tensor(full).bytes) << full << " variant " << variant;
      EXPECT_EQ(tensor.info().name, full);
      EXPECT_EQ(tensor.info().shape, image.tensor(full).shape);
      total += tensor.bytes();
    }
    uint64_t sum =
        checkpoint.embedding_bytes() + checkpoint.final_norm_bytes() + checkpoint.head_bytes();
    for (int layer = 0; layer < checkpoint.config().num_layers; ++layer) {
      sum += checkpoint.layer_bytes(layer);
    }
    EXPECT_EQ(sum, total);
    EXPECT_EQ(checkpoint.mapped_bytes(), total);
    EXPECT_EQ(checkpoint.head_bytes() == 0, options.tied);
  }
}

TEST(Checkpoint, ADummyNeedsNothingButTheConfigAndHasTheSameTensors) {
  const Checkpoint stored = Checkpoint::open(kBundled);
  const TemporaryDirectory scratch;
  std::filesystem::copy_file(kBundled / "config.json", scratch.path() / "config.json");
  const Checkpoint dummy = Checkpoint::open(scratch.path(), LoadFormat::dummy);
  EXPECT_EQ(dummy.format(), LoadFormat::dummy);
  for (const RequiredTensor& required : all_tensors(stored.config())) {
    const TensorInfo& info = dummy.tensor(required.name);
    EXPECT_EQ(info.shape, stored.tensor(required.name).shape) << required.name;
    EXPECT_EQ(info.dtype, DType::bf16);
  }
  // The bundled model stores some vectors as f32.
  EXPECT_LE(dummy.layer_bytes(0), stored.layer_bytes(0));
  EXPECT_EQ(dummy.embedding_bytes(), stored.embedding_bytes());
  EXPECT_EQ(dummy.head_bytes(), stored.head_bytes());
  EXPECT_THAT(refusal([&] { Checkpoint::open(scratch.path()); }),
              HasSubstr("holds neither model.safetensors"));
  EXPECT_DEATH(static_cast<void>(dummy.map("norm.weight")), "a checkpoint without files");
}

TEST(Checkpoint, ThePublishedShapesOpenAsDummies) {
  const std::filesystem::path shapes = std::filesystem::path(CONVOY_SOURCE_DIR) / "scripts/shapes";
  const auto bytes = [&](const char* name) {
    const Checkpoint c = Checkpoint::open(shapes / name, LoadFormat::dummy);
    uint64_t sum = c.embedding_bytes() + c.final_norm_bytes() + c.head_bytes();
    for (int layer = 0; layer < c.config().num_layers; ++layer) sum += c.layer_bytes(layer);
    return static_cast<double>(sum);
  };
  EXPECT_NEAR(bytes("qwen3.5-27b"), 53.8e9, 0.2e9);
  EXPECT_NEAR(bytes("qwen3.5-9b"), 17.9e9, 0.2e9);
  EXPECT_NEAR(bytes("qwen3.5-0.8b"), 1.5e9, 0.1e9);
}

TEST(Checkpoint, OpensTheBundledModelAndAccountsForEveryByteOfItsTrunk) {
  const Checkpoint checkpoint = Checkpoint::open(kBundled);
  uint64_t sum =
      checkpoint.embedding_bytes() + checkpoint.final_norm_bytes() + checkpoint.head_bytes();
  for (int layer = 0; layer < 12; ++layer) sum += checkpoint.layer_bytes(layer);
  EXPECT_EQ(sum, 31061904U);  // total_size of its index less the MTP tensors
  EXPECT_EQ(checkpoint.embedding_bytes(), 4096U * 256 * 2);
  EXPECT_EQ(checkpoint.head_bytes(), 4096U * 256 * 2);
  EXPECT_EQ(checkpoint.final_norm_bytes(), 512U);
  EXPECT_EQ(checkpoint.tensor("layers.3.self_attn.q_proj.weight").shape,
            (std::vector<int64_t>{1024, 256}));
  EXPECT_EQ(checkpoint.tensor("layers.0.linear_attn.A_log").offset, 8U + 7728 + 2097664);
  const std::vector<float> a_log = to_f32(checkpoint.map("layers.0.linear_attn.A_log"));
  ASSERT_EQ(a_log.size(), 4U);
  for (const float value : a_log) EXPECT_TRUE(value > -10 && value < 10) << value;
}

TEST(Checkpoint, OpensCheckpointsWrittenByTransformers) {
  const std::filesystem::path fixtures =
      std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fixtures/hf";
  int opened = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const Checkpoint checkpoint = Checkpoint::open(entry.path());
    EXPECT_GT(checkpoint.layer_bytes(0), 0U) << entry.path();
    ++opened;
  }
  EXPECT_GT(opened, 0);
}

TEST(Checkpoint, WidensBf16AndF32Exactly) {
  const TemporaryDirectory scratch;
  CheckpointImage image = make_tiny_checkpoint({});
  TensorImage& bf16 = image.tensor("model.layers.0.linear_attn.A_log");
  bf16.bytes = std::string("\x80\x3f\x01\xc0", 4);  // 1.0, -2.015625
  TensorImage& f32 = image.tensor("model.layers.0.linear_attn.dt_bias");
  f32.dtype = "F32";
  const float values[2] = {1.0F / 3.0F, -1e-30F};
  f32.bytes.assign(reinterpret_cast<const char*>(values), sizeof(values));
  write_checkpoint(image, scratch.path());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  EXPECT_EQ(to_f32(checkpoint.map("layers.0.linear_attn.A_log")),
            (std::vector<float>{1.0F, -2.015625F}));
  EXPECT_EQ(to_f32(checkpoint.map("layers.0.linear_attn.dt_bias")),
            (std::vector<float>{1.0F / 3.0F, -1e-30F}));
}

TEST(Checkpoint, ReadsTensorsAtOddOffsets) {
  const TemporaryDirectory scratch;
  CheckpointImage image = make_tiny_checkpoint({.f32_norms = true});
  image.tensors.insert(image.tensors.begin(), TensorImage{"odd", "U8", {1}, "x"});
  write_checkpoint(image, scratch.path());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  const std::vector<float> norm = to_f32(checkpoint.map("norm.weight"));
  EXPECT_EQ(
      std::memcmp(norm.data(), image.tensor("model.norm.weight").bytes.data(), 4 * norm.size()), 0);
}

TEST(Checkpoint, ATiedModelIgnoresAHeadInTheFile) {
  const TemporaryDirectory scratch;
  CheckpointImage image = make_tiny_checkpoint({.tied = false});
  image.outer_config["tie_word_embeddings"] = "true";
  write_checkpoint(image, scratch.path());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  EXPECT_EQ(checkpoint.head_bytes(), 0U);
  EXPECT_DEATH(static_cast<void>(checkpoint.tensor("lm_head.weight")), "no tensor lm_head.weight");
}

TEST(Checkpoint, ATextOnlyConfigMayHaveNestedNames) {
  const TemporaryDirectory scratch;
  CheckpointImage image = make_tiny_checkpoint({.nested = true});
  image.nested = false;
  image.outer_config["model_type"] = "\"qwen3_5_text\"";
  write_checkpoint(image, scratch.path());
  EXPECT_EQ(Checkpoint::open(scratch.path()).tensor("norm.weight").name,
            "model.language_model.norm.weight");
}

TEST(Checkpoint, TheSingleFileWinsOverAnIndex) {
  const TemporaryDirectory scratch;
  write_tiny_checkpoint({.shards = 2, .seed = 1}, scratch.path());
  write_tiny_checkpoint({.shards = 1, .seed = 2}, scratch.path());
  EXPECT_EQ(Checkpoint::open(scratch.path()).tensor("norm.weight").file, "model.safetensors");
}

TEST(Checkpoint, ShardsMayBeLinksAndExtraFilesAreIgnored) {
  const TemporaryDirectory scratch;
  const std::filesystem::path model = scratch.path() / "model";
  write_tiny_checkpoint({.shards = 2}, model);
  std::filesystem::rename(model / shard_name(0, 2), scratch.path() / "blob");
  std::filesystem::create_symlink("../blob", model / shard_name(0, 2));
  write_file(model / "extra.safetensors", "not a safetensors file");
  EXPECT_EQ(Checkpoint::open(model).map("embed_tokens.weight").bytes(), 64U * 32 * 2);
}

TEST(Checkpoint, ReachesOffsetsFarBeyond32Bits) {
  // The 27B model of the family as a sparse file: its header and no data.
  const TemporaryDirectory scratch;
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config = {{"model_type", "\"qwen3_5_text\""},
                       {"vocab_size", "248320"},
                       {"hidden_size", "5120"},
                       {"intermediate_size", "17408"},
                       {"num_hidden_layers", "64"},
                       {"num_attention_heads", "24"},
                       {"num_key_value_heads", "4"},
                       {"linear_num_key_heads", "16"},
                       {"linear_num_value_heads", "48"},
                       {"rope_parameters", "{\"rope_theta\": 1e7}"}};
  image.tensors.clear();
  write_checkpoint(image, scratch.path());
  std::string header;
  uint64_t offset = 0;
  const ModelConfig config = read_model_config(scratch.path());
  for (const RequiredTensor& tensor : all_tensors(config)) {
    uint64_t bytes = 2;
    for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    header += header.empty() ? "{\"" : ",\"";
    header += tensor.name == "lm_head.weight" ? tensor.name : "model." + tensor.name;
    header += R"(":{"dtype":"BF16","shape":)" + shape_text(tensor.shape) + R"(,"data_offsets":[)" +
              std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}";
    offset += bytes;
  }
  const std::filesystem::path path = scratch.path() / "model.safetensors";
  write_file(path, safetensors_bytes(header + "}", ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + offset);
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  EXPECT_EQ(offset, 53791996928U);
  const MappedTensor last = checkpoint.map("layers.63.mlp.down_proj.weight");
  EXPECT_EQ(last.info().offset + last.bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(last.data()[last.bytes() - 1], std::byte{0});
}

// ---- what is mapped ----

TEST(Checkpoint, OpeningMapsNothingAndALayerMapsItsOwnBytesOnly) {
  const TemporaryDirectory scratch;
  write_tiny_checkpoint({.shards = 3}, scratch.path());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  EXPECT_EQ(checkpoint.mapped_bytes(), 0U);
  EXPECT_EQ(mappings_under(scratch.path()), 0);
  uint64_t before = 0;
  for (int layer = 0; layer < checkpoint.config().num_layers; ++layer) {
    for (const RequiredTensor& tensor : layer_tensors(checkpoint.config(), layer)) {
      const MappedTensor mapped = checkpoint.map(tensor.name);
      EXPECT_EQ(mappings_under(scratch.path()), 1);
    }
    EXPECT_EQ(checkpoint.mapped_bytes() - before, checkpoint.layer_bytes(layer)) << layer;
    before = checkpoint.mapped_bytes();
  }
  EXPECT_EQ(mappings_under(scratch.path()), 0);
}

TEST(Checkpoint, TheStandInMapsWhatIsAskedForAndNoMore) {
  const Checkpoint checkpoint = Checkpoint::open(kBundled);
  EXPECT_EQ(mappings_under(kBundled), 0);
  const MappedTensor tensor = checkpoint.map("layers.5.mlp.up_proj.weight");
  EXPECT_EQ(checkpoint.mapped_bytes(), 768U * 256 * 2);
  EXPECT_EQ(mappings_under(kBundled), 1);
}

TEST(MappedTensor, MovingKeepsOneMappingAndUnmapsIt) {
  const TemporaryDirectory scratch;
  write_tiny_checkpoint({}, scratch.path());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path());
  {
    MappedTensor first = checkpoint.map("norm.weight");
    MappedTensor second(std::move(first));
    EXPECT_EQ(first.data(),
              nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is a promise
    EXPECT_EQ(first.bytes(), 0U);
    MappedTensor third = checkpoint.map("embed_tokens.weight");
    const std::string bytes = mapped_text(second);
    third = std::move(second);
    EXPECT_EQ(mapped_text(third), bytes);
    EXPECT_EQ(third.info().name, "model.norm.weight");
    EXPECT_EQ(mappings_under(scratch.path()), 1);
  }
  EXPECT_EQ(mappings_under(scratch.path()), 0);
}

// ---- files that change after they were checked ----

TEST(Checkpoint, AFileThatChangedSinceOpenIsRefusedAtMap) {
  const TemporaryDirectory scratch;
  const std::filesystem::path path = scratch.path() / "model.safetensors";
  const auto message_after = [&](const auto& change) {
    write_tiny_checkpoint({}, scratch.path());
    const Checkpoint checkpoint = Checkpoint::open(scratch.path());
    change();
    const std::string message = refusal([&] { checkpoint.map("embed_tokens.weight"); });
    EXPECT_EQ(checkpoint.mapped_bytes(), 0U);
    return message;
  };
  const auto size = [&] { return std::filesystem::file_size(path); };
  EXPECT_THAT(message_after([&] { std::filesystem::resize_file(path, size() - 1); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("changed"),
                    HasSubstr("embed_tokens.weight")));
  EXPECT_THAT(message_after([&] { std::filesystem::resize_file(path, 0); }), HasSubstr("0 now"));
  EXPECT_THAT(message_after([&] { std::filesystem::resize_file(path, size() + 1); }),
              HasSubstr("changed"));
  EXPECT_THAT(message_after([&] {
                const std::string same = read_file(path);
                write_file(scratch.path() / "new", same);
                std::filesystem::rename(scratch.path() / "new", path);
              }),
              HasSubstr("changed"));
  EXPECT_THAT(message_after([&] { std::filesystem::remove(path); }), HasSubstr("cannot open"));
}

}  // namespace
}  // namespace convoy::testing
