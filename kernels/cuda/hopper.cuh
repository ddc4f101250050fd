// Instructions of compute capability 9.0 that have no counterpart before it (PTX ISA, "Asynchronous
// warpgroup level matrix instructions", "Tensor copies", "mbarrier"). They exist in code for sm_90a
// only: kernels that use them are compiled under CONVOY_HOPPER_CODE.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CONVOY_HOPPER_CODE 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "compile for sm_90a: sm_90 lacks the warpgroup matrix instructions"
#endif

#ifdef CONVOY_HOPPER_CODE
namespace convoy::cuda {

/// Counts arrivals and bytes; its phases alternate in parity, beginning with 0.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// After the last init_barrier, before the block's barrier.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives, and lets the phase wait for `bytes` more bytes of tensor copies.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// Returns when the phase of this parity is over.
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Copies a box of a three-dimensional tensor to shared memory; its bytes count on the barrier.
__device__ __forceinline__ void copy_tensor_box(void* shared, const CUtensorMap* tensor, int x,
                                                int y, int z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4}], [%5];" ::"r"(shared_address(shared)),
      "l"(tensor), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
/// Copies `bytes` from global to shared memory, all three multiples of 16; they count on the
/// barrier.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor) : "memory");
}

/// Makes this thread's ordinary writes to shared memory visible to the matrix instructions that
/// start after the next barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// A matrix in shared memory: blocks of rows of 128 bytes, 16-byte chunk c of row r at chunk c ^ (r
/// % 8). `next_block`: bytes between blocks, used where the 128 bytes run along the outputs.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* shared, int next_block) {
  constexpr uint64_t kEightRows = 1024 >> 4;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (kEightRows << 32) | (static_cast<uint64_t>(next_block >> 4) << 16) |
         ((shared_address(shared) & 0x3FFFF) >> 4);
}
/// The descriptor of what lies `bytes` further on.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

/// Before the first product of a group, and after registers that a product reads were written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define CONVOY_WGMMA_4(x) "+f"((x)[0]), "+f"((x)[1]), "+f"((x)[2]), "+f"((x)[3])

/// d = (accumulate ? d : 0) + a b for a warpgroup: a [64, 16] and b [16, 64], both with the 16
/// along the 128-byte rows. Warp w holds rows 16w.. of d, laid out as mma_bf16's results, d[n]
/// columns 8n...
__device__ __forceinline__ void product_64x64(float (&d)[8][4], uint64_t a, uint64_t b,
                                              bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, accumulate, 1, 1, 0, 0;\n}\n"
      : CONVOY_WGMMA_4(d[0]), CONVOY_WGMMA_4(d[1]), CONVOY_WGMMA_4(d[2]), CONVOY_WGMMA_4(d[3]),
        CONVOY_WGMMA_4(d[4]), CONVOY_WGMMA_4(d[5]), CONVOY_WGMMA_4(d[6]), CONVOY_WGMMA_4(d[7])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d += a b: a [64, 16] in registers (mma_bf16's left operand), b [16, 128] or [16, 256] with the
/// outputs along the 128-byte rows.
__device__ __forceinline__ void add_product(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : CONVOY_WGMMA_4(d[0]), CONVOY_WGMMA_4(d[1]), CONVOY_WGMMA_4(d[2]), CONVOY_WGMMA_4(d[3]),
        CONVOY_WGMMA_4(d[4]), CONVOY_WGMMA_4(d[5]), CONVOY_WGMMA_4(d[6]), CONVOY_WGMMA_4(d[7]),
        CONVOY_WGMMA_4(d[8]), CONVOY_WGMMA_4(d[9]), CONVOY_WGMMA_4(d[10]), CONVOY_WGMMA_4(d[11]),
        CONVOY_WGMMA_4(d[12]), CONVOY_WGMMA_4(d[13]), CONVOY_WGMMA_4(d[14]), CONVOY_WGMMA_4(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void add_product(float (&d)[32][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n"
      : CONVOY_WGMMA_4(d[0]), CONVOY_WGMMA_4(d[1]), CONVOY_WGMMA_4(d[2]), CONVOY_WGMMA_4(d[3]),
        CONVOY_WGMMA_4(d[4]), CONVOY_WGMMA_4(d[5]), CONVOY_WGMMA_4(d[6]), CONVOY_WGMMA_4(d[7]),
        CONVOY_WGMMA_4(d[8]), CONVOY_WGMMA_4(d[9]), CONVOY_WGMMA_4(d[10]), CONVOY_WGMMA_4(d[11]),
        CONVOY_WGMMA_4(d[12]), CONVOY_WGMMA_4(d[13]), CONVOY_WGMMA_4(d[14]), CONVOY_WGMMA_4(d[15]),
        CONVOY_WGMMA_4(d[16]), CONVOY_WGMMA_4(d[17]), CONVOY_WGMMA_4(d[18]), CONVOY_WGMMA_4(d[19]),
        CONVOY_WGMMA_4(d[20]), CONVOY_WGMMA_4(d[21]), CONVOY_WGMMA_4(d[22]), CONVOY_WGMMA_4(d[23]),
        CONVOY_WGMMA_4(d[24]), CONVOY_WGMMA_4(d[25]), CONVOY_WGMMA_4(d[26]), CONVOY_WGMMA_4(d[27]),
        CONVOY_WGMMA_4(d[28]), CONVOY_WGMMA_4(d[29]), CONVOY_WGMMA_4(d[30]), CONVOY_WGMMA_4(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef CONVOY_WGMMA_4

}  // namespace convoy::cuda
#endif
