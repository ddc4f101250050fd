#include "shared/stage/link_layout.h"

#include <algorithm>

namespace convoy {
namespace {

constexpr uint32_t kResidualSlots = 2;

size_t column_bytes(const ModelConfig& config) {
  return static_cast<size_t>(config.hidden_size) * sizeof(float);
}

}  // namespace

StageLinkOptions residual_link_options(const ModelConfig& config, const StageLimits& limits) {
  return {.slots = kResidualSlots,
          .payload_bytes = static_cast<size_t>(limits.max_columns()) * column_bytes(config),
          .start = {}};
}

StageLinkOptions back_link_options(const ModelConfig& config, const StageLimits& limits,
                                   int stages) {
  return {.slots = static_cast<uint32_t>(std::max(stages, 2)),
          .payload_bytes = static_cast<size_t>(limits.lanes) * column_bytes(config),
          .start = {}};
}

}  // namespace convoy
