#include "shared/stage/link_layout.h"

#include <algorithm>

#include "kernels/device/ipc.h"

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

StageLinkOptions link_options(const ModelConfig& config, const StageLimits& limits, DeviceKind kind,
                              LinkStage sender, LinkChoice choice) {
  return sender.rank == sender.stages - 1
             ? back_link_options(config, limits, kind, sender.stages, choice)
             : residual_link_options(config, limits, kind, choice);
}

uint64_t link_bytes(const ModelConfig& config, const StageLimits& limits, DeviceKind kind,
                    LinkStage stage, LinkChoice choice) {
  if (stage.stages < 2) return 0;
  if (kind == DeviceKind::cpu)
    return stage_link_region_bytes(link_options(config, limits, kind, stage));
  const bool on_device =
      choice.wish == LinkWish::peer || (choice.wish == LinkWish::local && stage.shares_device);
  if (!on_device) return 0;
  const LinkStage sender{(stage.rank + stage.stages - 1) % stage.stages, stage.stages};
  return exported_bytes(device_slots_bytes(link_options(config, limits, kind, sender)));
}

}  // namespace convoy
