#include "shared/plan/weight_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "shared/model/text_tensors.h"
#include "tests/unit/plan/plan_models.h"

namespace convoy {
namespace {

std::map<std::string, RequiredTensor> by_name(const std::vector<RequiredTensor>& tensors) {
  std::map<std::string, RequiredTensor> out;
  for (const RequiredTensor& tensor : tensors)
    EXPECT_TRUE(out.emplace(tensor.name, tensor).second) << tensor.name;
  return out;
}

// Every stored tensor is named once, and what a weight is made of adds up to the weight.
void expect_covers(const std::vector<WeightSpec>& table, const std::vector<RequiredTensor>& tensors,
                   const std::string& prefix) {
  auto left = by_name(tensors);
  std::set<std::string> roles;
  for (const WeightSpec& spec : table) {
    EXPECT_TRUE(roles.insert(spec.role).second) << "role " << spec.role << " twice";
    int64_t rows = 0;
    int64_t values = 0;
    for (const std::string& name : spec.tensors) {
      const auto found = left.find(prefix + name);
      ASSERT_NE(found, left.end()) << name << " is unknown or named twice";
      const RequiredTensor& tensor = found->second;
      int64_t count = 1;
      for (const int64_t extent : tensor.shape) count *= extent;
      values += count;
      rows += tensor.shape.front();
      if (spec.form == WeightForm::vector) {
        EXPECT_TRUE(tensor.f32_allowed) << name;
        EXPECT_EQ(spec.in_features, 1) << name;
      } else {
        EXPECT_FALSE(tensor.f32_allowed) << name;
        ASSERT_EQ(tensor.shape.size(), 2U) << name;
        EXPECT_EQ(tensor.shape[1], spec.in_features) << name;
      }
      left.erase(found);
    }
    EXPECT_EQ(values, int64_t{spec.out_features} * spec.in_features) << spec.role;
    if (spec.form != WeightForm::vector) {
      EXPECT_EQ(rows, spec.out_features) << spec.role;
    }
  }
  for (const auto& [name, tensor] : left) ADD_FAILURE() << name << " is in no weight";
}

TEST(WeightTable, CoversEveryTensorOfEveryLayerOnce) {
  for (const ModelConfig& config : {standin_config(), config_27b()}) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      SCOPED_TRACE(layer);
      expect_covers(layer_weight_table(config, layer), layer_tensors(config, layer),
                    "layers." + std::to_string(layer) + ".");
    }
  }
}

TEST(WeightTable, CoversTheRootTensorsTiedAndNot) {
  ModelConfig config = standin_config();
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    config.tie_word_embeddings = tied;
    expect_covers(root_weight_table(config), root_tensors(config), "");
  }
}

TEST(WeightTable, TiedHeadIsOneWeight) {
  ModelConfig config = config_27b();
  config.tie_word_embeddings = true;
  for (const WeightSpec& spec : root_weight_table(config)) EXPECT_NE(spec.form, WeightForm::table);
}

TEST(WeightBytes, FormsAndRoundingByHand) {
  const WeightSpec linear{"x", {}, WeightForm::linear, 65, 16};
  EXPECT_EQ(weight_bytes(linear, DeviceKind::cuda), 65U * 16 * 2);
  EXPECT_EQ(weight_bytes(linear, DeviceKind::cpu), 128U * 16 * 2);  // whole panels of 64 rows
  const WeightSpec exact{"x", {}, WeightForm::linear, 64, 16};
  EXPECT_EQ(weight_bytes(exact, DeviceKind::cpu), 64U * 16 * 2);
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    EXPECT_EQ(weight_bytes({"x", {}, WeightForm::vector, 65, 1}, kind), 65U * 4);
    EXPECT_EQ(weight_bytes({"x", {}, WeightForm::table, 65, 16}, kind), 65U * 16 * 2);
  }
  // More than 32 bits.
  EXPECT_EQ(weight_bytes({"x", {}, WeightForm::linear, 248320, 16384}, DeviceKind::cuda),
            8136949760U);
}

}  // namespace
}  // namespace convoy
