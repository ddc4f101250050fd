// Words that the card itself writes and checks, so that a link's every word can be compared at the
// link's own speed. Plain types only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace convoy::test {

/// words[i] = f(seed, i), for i < count.
void fill_pattern(cudaStream_t stream, uint32_t* words, size_t count, uint32_t seed);
/// *wrong += how many of words[0, count) differ from fill_pattern's.
void check_pattern(cudaStream_t stream, const uint32_t* words, size_t count, uint32_t seed,
                   unsigned long long* wrong);

}  // namespace convoy::test
