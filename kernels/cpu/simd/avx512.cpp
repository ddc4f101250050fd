// The kernels compiled for AVX-512.
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

// GCC 12 takes the "undefined" operands inside its own intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#define CONVOY_KERNELS_AVX512
#include "kernels/cpu/simd/kernels.h"
#pragma GCC pop_options

namespace convoy::cpu {
const KernelTable* avx512_kernels() {
  return &kKernels;
}
}  // namespace convoy::cpu

#else

namespace convoy::cpu {
const KernelTable* avx512_kernels() {
  return nullptr;
}
}  // namespace convoy::cpu

#endif
