#include "shared/stage/link_layout.h"

#include <algorithm>

namespace convoy {
namespace {

constexpr uint32_t kResidualSlots = 2;

size_t column_bytes(const ModelConfig& config, DeviceKind kind) {
  return static_cast<size_t>(config.hidden_size) * activation_bytes(kind);
}

}  // namespace

StageLinkOptions residual_link_options(const ModelConfig& config, const StageLimits& limits,
                                       DeviceKind kind, LinkChoice choice) {
  return {.slots = kResidualSlots,
          .payload_bytes = static_cast<size_t>(limits.max_columns()) * column_bytes(config, kind),
          .start = {},
          .wish = choice.wish,
          .doorbell = choice.doorbell};
}

StageLinkOptions back_link_options(const ModelConfig& config, const StageLimits& limits,
                                   DeviceKind kind, int stages, LinkChoice choice) {
  return {.slots = static_cast<uint32_t>(std::max(stages, 2)),
          .payload_bytes = static_cast<size_t>(limits.lanes) * column_bytes(config, kind),
          .start = {},
          .wish = choice.wish,
          .doorbell = choice.doorbell};
}

}  // namespace convoy
