// What a damaged or foreign checkpoint is refused for: every message names the file and the tensor.
#include <filesystem>

#include "shared/model/checkpoint.h"
#include "tests/unit/model/checkpoint_writer.h"
#include "tests/unit/model/refusal.h"

namespace convoy::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DamagedCheckpoint : public ::testing::Test {
 protected:
  /// Writes the image and returns what opening it is refused with.
  std::string refused(const CheckpointImage& image) {
    std::filesystem::remove_all(path_);
    write_checkpoint(image, path_);
    return reopened();
  }
  std::string reopened() {
    return refusal([&] { Checkpoint::open(path_); });
  }
  const TemporaryDirectory scratch_;
  const std::filesystem::path path_ = scratch_.path() / "model";
};

TEST_F(DamagedCheckpoint, EveryMissingTensorIsNamed) {
  for (const bool nested : {false, true}) {
    const CheckpointImage whole = make_tiny_checkpoint({.layers = "lf", .nested = nested});
    for (const TensorImage& tensor : whole.tensors) {
      CheckpointImage image = whole;
      image.erase_tensor(tensor.name);
      EXPECT_THAT(refused(image), AllOf(HasSubstr(tensor.name), HasSubstr("missing"),
                                        HasSubstr("model.safetensors")));
    }
  }
}

TEST_F(DamagedCheckpoint, EveryWrongShapeIsNamedWithBothShapes) {
  const CheckpointImage whole = make_tiny_checkpoint({.layers = "lf"});
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    CheckpointImage image = whole;
    TensorImage& tensor = image.tensors[i];
    const std::vector<int64_t> right = tensor.shape;
    tensor.shape.push_back(1);  // the same bytes
    EXPECT_THAT(refused(image), AllOf(HasSubstr(tensor.name), HasSubstr(shape_text(tensor.shape)),
                                      HasSubstr("asks for " + shape_text(right))));
    tensor.shape = right;
    tensor.bytes += tensor.bytes;
    tensor.shape[0] *= 2;
    EXPECT_THAT(refused(image), AllOf(HasSubstr(tensor.name), HasSubstr(shape_text(tensor.shape))));
  }
}

TEST_F(DamagedCheckpoint, OtherDtypesAreRefusedWithTheAllowedOnes) {
  const CheckpointImage whole = make_tiny_checkpoint({.layers = "lf"});
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    const std::string name = whole.tensors[i].name;
    const bool widened = name.find("norm") != std::string::npos || name.ends_with("A_log") ||
                         name.ends_with("dt_bias") || name.find("conv1d") != std::string::npos;
    for (const char* dtype : {"F16", "I16", "F32", "F8_E4M3"}) {
      CheckpointImage image = whole;
      TensorImage& tensor = image.tensors[i];
      tensor.dtype = dtype;
      if (tensor.dtype == "F32") {
        if (widened) continue;
        tensor.bytes += tensor.bytes;
      }
      if (tensor.dtype == "F8_E4M3") tensor.bytes.resize(tensor.bytes.size() / 2);
      EXPECT_THAT(refused(image),
                  AllOf(HasSubstr(name), HasSubstr(std::string("is ") + dtype),
                        HasSubstr(widened ? "allowed: BF16, F32" : "allowed: BF16")));
    }
  }
}

TEST_F(DamagedCheckpoint, QuantisedWeightsWithoutAQuantizationConfigAreNamed) {
  CheckpointImage image = make_tiny_checkpoint({});
  TensorImage& tensor = image.tensor("model.layers.1.mlp.up_proj.weight");
  tensor.name = "model.layers.1.mlp.up_proj.qweight";
  EXPECT_THAT(refused(image), AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"),
                                    HasSubstr("up_proj.qweight is there"), HasSubstr("quantised")));
}

TEST_F(DamagedCheckpoint, AnUntiedModelWithoutAHeadSaysWhy) {
  CheckpointImage image = make_tiny_checkpoint({.tied = true});
  image.outer_config["tie_word_embeddings"] = "false";
  EXPECT_THAT(refused(image),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings false")));
}

TEST_F(DamagedCheckpoint, MoreLayersInTheConfigThanInTheFileAreNamed) {
  CheckpointImage image = make_tiny_checkpoint({.layers = "lll"});
  image.text_config["num_hidden_layers"] = "4";
  image.text_config.erase("layer_types");
  EXPECT_THAT(refused(image), HasSubstr("model.layers.3.input_layernorm.weight"));
}

TEST_F(DamagedCheckpoint, ATruncatedShardIsNamed) {
  for (const uintmax_t cut : {uintmax_t{1}, uintmax_t{65536}}) {
    std::filesystem::remove_all(path_);
    write_tiny_checkpoint({.vocab_size = 4096, .shards = 2}, path_);
    const std::filesystem::path shard = path_ / shard_name(1, 2);
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - cut);
    EXPECT_THAT(reopened(),
                AllOf(HasSubstr(shard.string()), HasSubstr("truncated"), HasSubstr("tensor")));
    std::filesystem::resize_file(shard, 0);
    EXPECT_THAT(reopened(), AllOf(HasSubstr(shard.string()), HasSubstr("0 bytes")));
  }
}

TEST_F(DamagedCheckpoint, AMissingShardIsNamedWithTheIndex) {
  write_tiny_checkpoint({.shards = 2}, path_);
  std::filesystem::remove(path_ / shard_name(0, 2));
  EXPECT_THAT(reopened(), AllOf(HasSubstr(shard_name(0, 2)), HasSubstr("no such file"),
                                HasSubstr("model.safetensors.index.json")));
  std::filesystem::create_directory(path_ / shard_name(0, 2));
  EXPECT_THAT(reopened(), AllOf(HasSubstr(shard_name(0, 2)), HasSubstr("not a regular file")));
}

TEST_F(DamagedCheckpoint, ATensorThatIsNotInItsShardIsNamed) {
  CheckpointImage image = make_tiny_checkpoint({.shards = 2});
  image.index_changes["lm_head.weight"] = shard_name(0, 2);
  EXPECT_THAT(refused(image),
              AllOf(HasSubstr(shard_name(0, 2)), HasSubstr("lm_head.weight"), HasSubstr("not in")));
  image.index_changes = {{"ghost.weight", shard_name(1, 2)}};
  EXPECT_THAT(refused(image), AllOf(HasSubstr(shard_name(1, 2)), HasSubstr("ghost.weight")));
  image.index_changes = {{"lm_head.weight", ""}};
  EXPECT_THAT(refused(image),
              AllOf(HasSubstr("index.json"), HasSubstr("lm_head.weight is missing")));
  image.index_changes = {{"lm_head.weight", "../x.safetensors"}};
  EXPECT_THAT(refused(image), AllOf(HasSubstr("index.json"), HasSubstr("same directory")));
}

TEST_F(DamagedCheckpoint, ADirectoryWithoutWeightsIsRefused) {
  write_tiny_checkpoint({}, path_);
  std::filesystem::rename(path_ / "model.safetensors", path_ / "other.safetensors");
  EXPECT_THAT(reopened(),
              AllOf(HasSubstr("neither model.safetensors nor model.safetensors.index.json")));
}

TEST_F(DamagedCheckpoint, NothingButTheConfigDecidesBeforeHeadersAreRead) {
  CheckpointImage image = make_tiny_checkpoint({});
  image.text_config["hidden_size"] = "17";
  std::filesystem::remove_all(path_);
  write_checkpoint(image, path_);
  std::filesystem::resize_file(path_ / "model.safetensors", 3);
  EXPECT_THAT(reopened(), HasSubstr("hidden_size is 17"));
}

}  // namespace
}  // namespace convoy::testing
