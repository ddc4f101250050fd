// How much shared memory a block can have.
#pragma once

#include <cstddef>

namespace convoy::cuda {

/// On the device of the first caller: 227 KiB on sm_90, 163 on sm_80, 99 on sm_86, sm_89 and
/// sm_120. `CONVOY_TEST_SHARED_KIB` lowers it, so that a large card runs what small ones do.
size_t shared_bytes_per_block();

}  // namespace convoy::cuda
