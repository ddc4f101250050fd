#include "kernels/cpu/cpu_stream.h"

#include <cstring>

#include "base/futex.h"

namespace convoy {

void CpuStream::copy(void* destination, const void* source, size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

void CpuStream::fill_zero(void* destination, size_t bytes) {
  if (bytes > 0) std::memset(destination, 0, bytes);
}

void CpuStream::wait_value(uint32_t* word, uint32_t value) {
  futex_wait_reached(word, value, wait_spins_.load(std::memory_order_relaxed));
}

void CpuStream::write_value(uint32_t* word, uint32_t value) {
  futex_store_and_wake(word, value);
}

}  // namespace convoy
