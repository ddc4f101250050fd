// What the prefix cache keeps of a stage in host memory.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "kernels/device/device.h"
#include "shared/plan/stage_memory.h"

namespace convoy {

/// Host memory that the device copies to and from: page groups and recurrent states of the stage's
/// layers, first layer first. Keys of a layer come before its values, its recurrent state before
/// that of its convolution.
class HostCache {
 public:
  /// Throws StartError when the host has too little memory.
  HostCache(Device& device, const ModelConfig& config, LayerRange layers,
            const StageLimits& limits);
  /// Numbered from 0; in range.
  std::byte* page(int32_t number) const { return at(pages_, number, page_bytes_); }
  std::byte* state(int32_t number) const { return at(states_, number, state_bytes_); }

 private:
  static std::byte* at(const Buffer& buffer, int32_t number, uint64_t bytes) {
    return buffer.as<std::byte>() + static_cast<uint64_t>(number) * bytes;
  }
  uint64_t page_bytes_;
  uint64_t state_bytes_;
  Buffer pages_;
  Buffer states_;
};

}  // namespace convoy
