// The kernels in portable C++, for every other processor.
#include "kernels/cpu/simd/kernels.h"

namespace convoy::cpu {
const KernelTable* scalar_kernels() {
  return &kKernels;
}
}  // namespace convoy::cpu
