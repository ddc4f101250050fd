// Tells checkpoints apart without reading them whole.
#pragma once

#include <cstdint>

#include "shared/model/checkpoint.h"

namespace convoy {

/// A hash over the text model's shape and, where there are weights, over a few bytes from the
/// beginning, the middle and the end of every tensor: fine-tunes of one model differ. Throws
/// StartError when a tensor cannot be read.
uint64_t model_fingerprint(const Checkpoint& checkpoint);

}  // namespace convoy
