#include "shared/stage/host_cache.h"

namespace convoy {

HostCache::HostCache(Device& device, const ModelConfig& config, LayerRange layers,
                     const StageLimits& limits)
    : page_bytes_(page_group_bytes(config, layers, limits.kv_dtype)),
      state_bytes_(state_image_bytes(config, layers)) {
  const uint64_t pages = static_cast<uint64_t>(limits.host_pages) * page_bytes_;
  const uint64_t states = static_cast<uint64_t>(limits.host_slots) * state_bytes_;
  if (pages > 0) pages_ = device.allocate_host(pages, "page groups in host memory");
  if (states > 0) states_ = device.allocate_host(states, "recurrent states in host memory");
}

}  // namespace convoy
