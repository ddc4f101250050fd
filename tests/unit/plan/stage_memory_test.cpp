#include "shared/plan/stage_memory.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/plan_models.h"

namespace convoy {
namespace {

TEST(StageLimits, PagesSlotsAndColumns) {
  EXPECT_EQ(StageLimits{.max_context_tokens = 1}.pages_per_row(), 1);
  EXPECT_EQ(StageLimits{.max_context_tokens = 64}.pages_per_row(), 1);
  EXPECT_EQ(StageLimits{.max_context_tokens = 65}.pages_per_row(), 2);
  const StageLimits wide{.prefill_chunk_tokens = 64, .lanes = 16};
  EXPECT_EQ(wide.state_slots(), 32);
  EXPECT_EQ(wide.max_columns(), 64);
}

TEST(StageMemory, StandinLayersByHand) {
  const ModelConfig config = standin_config();
  const StageLimits limits{
      .max_context_tokens = 4096, .prefill_chunk_tokens = 512, .lanes = 1, .page_groups = 64};
  EXPECT_EQ(kv_page_bytes(config, KvDtype::f32), 64U * 256 * 4);
  EXPECT_EQ(gdn_state_bytes(config), 4U * 128 * 128 * 4);
  EXPECT_EQ(conv_state_bytes(config), 1024U * 3 * 4);

  // Layer 3 is full attention: q+gate 1024, k and v 256 rows each; o 256x512; two head norms; the
  // MLP; two layer norms.
  const StageMemory attention = stage_memory(config, {3, 4}, limits, DeviceKind::cpu);
  EXPECT_EQ(attention.weight_bytes, 1536U * 256 * 2 + 256 * 512 * 2 + 2 * 256 * 4 + 1536 * 256 * 2 +
                                        256 * 768 * 2 + 2 * 256 * 4);
  EXPECT_EQ(attention.kv_bytes, 2U * 64 * 65536);
  EXPECT_EQ(attention.state_bytes, 0U);
  // Per column: residual and norm 2*256, projection 1536, attended 768 f32 and a control row; then
  // the last column of a lane, 32 rotary frequencies with their axes, a block table of 64 pages
  // and the 10 entries of it that a step may change.
  EXPECT_EQ(attention.workspace_bytes,
            512U * ((512 + 1536 + 768) * 4 + 32) + 256 * 4 + 32 * 8 + 64 * 4 + 10 * 12);

  // Layer 0 is GDN: q, k, v 1024, z 512, b and a 4 rows each, in panels of 64; out 256x512.
  const StageMemory gdn = stage_memory(config, {0, 1}, limits, DeviceKind::cpu);
  EXPECT_EQ(gdn.weight_bytes, 1600U * 256 * 2 + 256 * 512 * 2 + 1024 * 4 * 4 + 4 * 4 + 4 * 4 +
                                  128 * 4 + 1536 * 256 * 2 + 256 * 768 * 2 + 2 * 256 * 4);
  EXPECT_EQ(gdn.kv_bytes, 0U);
  EXPECT_EQ(gdn.state_bytes, 2U * (262144 + 12288));
  EXPECT_EQ(gdn.workspace_bytes,
            512U * ((512 + 1544 + 1024 + 768 + 8) * 4 + 32) + 256 * 4 + 32 * 8);

  const StageMemory root = root_memory(config, limits, DeviceKind::cpu);
  EXPECT_EQ(root.weight_bytes, 2U * 4096 * 256 * 2 + 256 * 4);
  EXPECT_EQ(root.workspace_bytes, 512U * 4 + (2 * 256 + 4096) * 4 + 4 + 4 + 40);

  StageMemory whole = stage_memory(config, {0, 12}, limits, DeviceKind::cpu);
  EXPECT_EQ(whole.weight_bytes + root.weight_bytes, 31412000U);
  EXPECT_EQ(whole.kv_bytes, 3U * attention.kv_bytes);
  EXPECT_EQ(whole.state_bytes, 9U * gdn.state_bytes);
}

TEST(StageMemory, Shape27bMatchesTheReference) {
  const ModelConfig config = config_27b();
  StageLimits limits{
      .max_context_tokens = 65536, .prefill_chunk_tokens = 512, .lanes = 4, .page_groups = 1024};
  const StageMemory cpu = stage_memory(config, {0, 64}, limits, DeviceKind::cpu);
  limits.kv_dtype = KvDtype::bf16;
  const StageMemory cuda = stage_memory(config, {0, 64}, limits, DeviceKind::cuda);
  // model-reference 1.4: 65,536 bytes a token in bf16; a slot of recurrent state is 144 MiB. CPU
  // devices keep KV as f32.
  EXPECT_EQ(cuda.kv_bytes, uint64_t{65536} * 65536);
  EXPECT_EQ(cpu.kv_bytes, 2 * cuda.kv_bytes);
  EXPECT_EQ(kv_page_bytes(config, KvDtype::bf16), 131072U);
  EXPECT_EQ(kv_page_bytes(config, KvDtype::f32), 262144U);
  EXPECT_EQ(48 * gdn_state_bytes(config), 150994944U);
  EXPECT_EQ(48 * conv_state_bytes(config), 2U * 2949120U);  // f32 where the reference counts bf16
  EXPECT_EQ(cuda.state_bytes, 8U * (150994944U + 5898240U));
  EXPECT_EQ(cuda.weight_bytes, 48711673856U);
  EXPECT_EQ(root_memory(config, limits, DeviceKind::cuda).weight_bytes, 5085614080U);
}

TEST(StageMemory, QuantisedPagesHaveAByteAValueAndTheirScales) {
  ModelConfig config = config_27b();
  EXPECT_EQ(kv_page_bytes(config, KvDtype::fp8), 4U * 64 * 256);
  EXPECT_EQ(kv_page_bytes(config, KvDtype::int8), 4U * 64 * (256 + 4 * 2));
  config.head_dim = 80;  // a whole group of 64 and one of 16
  EXPECT_EQ(kv_page_bytes(config, KvDtype::int8), 4U * 64 * (80 + 2 * 2));
  for (const int dim : {16, 48, 64, 80, 256, 496}) {
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::bf16, KvDtype::int8, KvDtype::fp8})
      EXPECT_EQ(kv_block_bytes(dtype, dim) % 16, 0U) << kv_dtype_name(dtype) << " of " << dim;
  }
  StageLimits limits{.max_context_tokens = 4096, .page_groups = 64, .kv_dtype = KvDtype::int8};
  EXPECT_EQ(stage_memory(config_27b(), {3, 4}, limits, DeviceKind::cuda).kv_bytes,
            2U * 64 * 4 * 64 * (256 + 4 * 2));
}

TEST(StageMemory, AnySplitAddsUpToTheWhole) {
  for (const ModelConfig& config : {standin_config(), config_27b()}) {
    const StageLimits limits{.max_context_tokens = 1000, .lanes = 3, .page_groups = 48};
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
      const StageMemory whole = stage_memory(config, {0, config.num_layers}, limits, kind);
      for (int first = 1; first < config.num_layers - 1; ++first) {
        for (int second = first + 1; second < config.num_layers; second += 3) {
          StageMemory sum;
          for (const LayerRange part : {LayerRange{0, first}, LayerRange{first, second},
                                        LayerRange{second, config.num_layers}}) {
            const StageMemory stage = stage_memory(config, part, limits, kind);
            sum.weight_bytes += stage.weight_bytes;
            sum.kv_bytes += stage.kv_bytes;
            sum.state_bytes += stage.state_bytes;
            // Scratch is shared by a stage's layers, so no part needs more than the whole.
            EXPECT_LE(stage.workspace_bytes, whole.workspace_bytes);
          }
          ASSERT_EQ(sum.weight_bytes, whole.weight_bytes);
          ASSERT_EQ(sum.kv_bytes, whole.kv_bytes);
          ASSERT_EQ(sum.state_bytes, whole.state_bytes);
        }
      }
    }
  }
}

TEST(StageMemory, CardsLoseUpToTwoMibAtTheEndOfEveryPlane) {
  const ModelConfig config = config_27b();
  const StageLimits limits{
      .max_context_tokens = 4096, .page_groups = 64, .kv_dtype = KvDtype::bf16};
  const auto runtime = [&](LayerRange layers, DeviceKind kind) {
    return stage_memory(config, layers, limits, kind).runtime_bytes;
  };
  const uint64_t none = runtime({0, 3}, DeviceKind::cuda);  // no attention layer
  EXPECT_EQ(runtime({0, 4}, DeviceKind::cuda) - none, 2U * (2U << 20));
  EXPECT_EQ(runtime({0, 64}, DeviceKind::cuda) - none, 16U * 2 * (2U << 20));
  EXPECT_EQ(runtime({0, 64}, DeviceKind::cpu), 0U);
}

TEST(StageMemory, TotalCountsEveryKind) {
  EXPECT_EQ((StageMemory{1, 20, 300, 4000, 50000}.total()), 54321U);
}

TEST(StageMemory, StageWithoutAttentionHasNoKvAndNoBlockTable) {
  const ModelConfig config = standin_config();
  const StageLimits small{.max_context_tokens = 64, .page_groups = 1};
  const StageLimits large{.max_context_tokens = 4096, .page_groups = 64};
  EXPECT_EQ(stage_memory(config, {0, 3}, small, DeviceKind::cpu),
            stage_memory(config, {0, 3}, large, DeviceKind::cpu));
}

}  // namespace
}  // namespace convoy
