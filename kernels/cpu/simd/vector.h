// The 16-lane vector of the instruction set that the including file is compiled for (avx512.cpp,
// avx2.cpp, scalar.cpp).
#pragma once

#if defined(CONVOY_KERNELS_AVX512)
#include "kernels/cpu/simd/vector_avx512.h"
#elif defined(CONVOY_KERNELS_AVX2)
#include "kernels/cpu/simd/vector_avx2.h"
#else
#include "kernels/cpu/simd/vector_scalar.h"
#endif
