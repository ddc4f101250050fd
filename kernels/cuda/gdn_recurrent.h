// The recurrent form of the gated delta rule, for the operations that fall back to it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops/op_set.h"

namespace convoy::cuda {

void check_gdn(const GdnArgs& args);

/// Any key_dim up to 256, any value_dim; any width, any first position.
void run_gdn_recurrent(cudaStream_t stream, const GdnArgs& args);

}  // namespace convoy::cuda
