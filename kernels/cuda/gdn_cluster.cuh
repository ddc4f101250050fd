// What the blocks of a thread block cluster need to exchange a few sums (PTX ISA,
// "barrier.cluster", "mbarrier", "st.async"). Compute capability 9.0; kernels that were compiled
// for less must not be launched.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace convoy::cuda {

/// A barrier of the cluster's threads, without any order of their memory accesses.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

/// Values that another block of the cluster stores to this one's shared memory. Each phase expects
/// so many of them.
struct Arrival {
  uint64_t barrier;

  /// By one thread, before a barrier of the cluster.
  __device__ __forceinline__ void prepare() {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(&barrier))
        : "memory");
#endif
  }

  /// Begins a phase. By one thread, once per phase; values may have arrived already.
  __device__ __forceinline__ void expect_floats(int count) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
        "r"(4 * count)
        : "memory");
#endif
  }

  /// Waits for all values of a phase; phases are counted from 0. What arrived is visible then.
  __device__ __forceinline__ void wait(int phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(&barrier)),
        "r"(phase % 2)
        : "memory");
#endif
  }
};

/// Stores `value` to the same shared variable of block `rank` of the cluster, where it counts for
/// `arrival`.
__device__ __forceinline__ void send_to_block(unsigned rank, float* variable, Arrival& arrival,
                                              float value) {
#if __CUDA_ARCH__ >= 900
  uint32_t to, signal;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(to)
               : "r"(shared_address(variable)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(signal)
               : "r"(shared_address(&arrival.barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(value)), "r"(signal)
      : "memory");
#endif
}

}  // namespace convoy::cuda
