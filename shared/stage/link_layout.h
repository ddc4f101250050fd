// Sizes of the links between stages: both ends compute them from the same plan.
#pragma once

#include "shared/ipc/stage_link.h"
#include "shared/plan/stage_memory.h"

namespace convoy {

/// How the links of a run work. Stages on CPU devices exchange through shared memory, whatever is
/// chosen.
struct LinkChoice {
  LinkWish wish = LinkWish::pinned;
  LinkDoorbell doorbell = LinkDoorbell::words;
};

/// rank r → r+1: every column of the widest step. Two slots: one fills while the other drains.
StageLinkOptions residual_link_options(const ModelConfig& config, const StageLimits& limits,
                                       DeviceKind kind, LinkChoice choice = {});

/// Last rank → 0: the last live column of each lane. One slot per stage, since rank 0 issues that
/// many prefill chunks before it consumes the first (with fewer, deep pipelines deadlock).
StageLinkOptions back_link_options(const ModelConfig& config, const StageLimits& limits,
                                   DeviceKind kind, int stages, LinkChoice choice = {});

struct LinkStage {
  int rank = 0;
  int stages = 1;
  bool shares_device = false;  ///< with the stage that sends to it
};
/// The link that `sender` sends through: one of the above.
StageLinkOptions link_options(const ModelConfig& config, const StageLimits& limits, DeviceKind kind,
                              LinkStage sender, LinkChoice choice = {});

/// What links take of a stage's device. CUDA devices: the slots that it receives in, but nothing
/// for pinned ones, which lie in host memory. CPU devices: the region that it sends through.
uint64_t link_bytes(const ModelConfig& config, const StageLimits& limits, DeviceKind kind,
                    LinkStage stage, LinkChoice choice);

}  // namespace convoy
