// The kernels compiled for AVX2 with FMA.
#include "kernels/cpu/simd/kernel_table.h"

#if defined(__x86_64__)

// Everything of other libraries comes before the pragma, so that only the kernels get the
// instructions.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define CONVOY_KERNELS_AVX2
#include "kernels/cpu/simd/kernels.h"
#pragma GCC pop_options

namespace convoy::cpu {
const KernelTable* avx2_kernels() {
  return &kKernels;
}
}  // namespace convoy::cpu

#else

namespace convoy::cpu {
const KernelTable* avx2_kernels() {
  return nullptr;
}
}  // namespace convoy::cpu

#endif
