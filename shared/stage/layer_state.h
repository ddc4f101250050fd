// Moves one layer's part of a sequence's state between its device memory and a saved state
// (shared/state).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/device/device.h"
#include "shared/stage/attention_layer.h"
#include "shared/stage/gdn_layer.h"
#include "shared/state/state_layout.h"

namespace convoy {

/// Where a sequence's state lies on a stage.
struct SequencePlace {
  std::span<const int32_t> pages;  ///< page groups of its blocks, in order
  int32_t state_slot = 0;          ///< recurrent state after its last token
  uint32_t tokens = 0;
};

/// One buffer serves all layers. One thread uses it; calls return when the bytes have moved.
class LayerStateMover {
 public:
  static constexpr size_t kBufferBytes = size_t{4} << 20;
  /// `buffer`: kBufferBytes of the device's host memory.
  LayerStateMover(Stream& stream, Buffer& buffer);

  /// Writes the layer's bytes at `section.offset` of `fd`; gives their hash. Errors: writing.
  Result<uint64_t> save(const AttentionLayer& layer, const ModelConfig& config,
                        const SequencePlace& place, int fd, const StateSection& section);
  Result<uint64_t> save(const GdnLayer& layer, const ModelConfig& config,
                        const SequencePlace& place, int fd, const StateSection& section);
  /// Reads them and compares the hash. After an error the sequence's memory holds anything.
  Status load(const AttentionLayer& layer, const ModelConfig& config, const SequencePlace& place,
              int fd, const StateSection& section);
  Status load(const GdnLayer& layer, const ModelConfig& config, const SequencePlace& place, int fd,
              const StateSection& section);

 private:
  class Writing;
  class Reading;

  Stream& stream_;
  Buffer& buffer_;
};

}  // namespace convoy
