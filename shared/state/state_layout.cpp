#include "shared/state/state_layout.h"

#include <xxhash.h>

#include <new>

#include "base/check.h"
#include "kernels/ops/step.h"
#include "shared/plan/stage_memory.h"

namespace convoy {
namespace {

constexpr uint64_t kAlignment = 4096;

uint64_t aligned(uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t layer_state_bytes(const ModelConfig& config, int layer, KvDtype kv_dtype,
                           uint32_t tokens) {
  const LayerRange alone{layer, layer + 1};
  const uint64_t blocks = (tokens + uint32_t{kPageTokens} - 1) / uint32_t{kPageTokens};
  return blocks * page_group_bytes(config, alone, kv_dtype) + state_image_bytes(config, alone);
}

}  // namespace

StateLayout state_layout(const ModelConfig& config, KvDtype kv_dtype, uint32_t tokens) {
  CONVOY_CHECK_OP(tokens, >=, 1U);
  StateLayout layout;
  layout.ids_offset = sizeof(StateHeader);
  layout.ids_bytes = (uint64_t{tokens} + 1) * sizeof(int32_t);
  layout.table_offset = (layout.ids_offset + layout.ids_bytes + 7) / 8 * 8;
  uint64_t next =
      layout.table_offset + static_cast<uint64_t>(config.num_layers) * sizeof(StateSection);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const uint64_t offset = aligned(next);
    const uint64_t bytes = layer_state_bytes(config, layer, kv_dtype, tokens);
    layout.layers.push_back({offset, bytes, 0});
    next = offset + bytes;
  }
  layout.file_bytes = next;
  return layout;
}

StateHash::StateHash() : state_(XXH64_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH64_reset(static_cast<XXH64_state_t*>(state_), 0);
}

StateHash::~StateHash() {
  XXH64_freeState(static_cast<XXH64_state_t*>(state_));
}

void StateHash::add(const void* data, size_t bytes) {
  XXH64_update(static_cast<XXH64_state_t*>(state_), data, bytes);
}

uint64_t StateHash::value() const {
  return XXH64_digest(static_cast<const XXH64_state_t*>(state_));
}

uint64_t state_hash(const void* data, size_t bytes) {
  return XXH64(data, bytes, 0);
}

}  // namespace convoy
