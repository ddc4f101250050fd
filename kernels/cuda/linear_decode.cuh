// The kernels of the generated class: a few columns times a weight that is read once.
//
// Weights are the A operand of m16n8k16, columns the B operand in tiles of 8. K is cut into
// kChunks chunks whose length in_features fixes; a chunk is one chain of mma over ascending k, and
// the sums of the chunks are added in ascending order. Who computes a chunk, and how many rows and
// columns it has beside, therefore never shows in the bits.
//
// Both operands come through rings of cp.async stages. A stage is a unit of K: 64 values, 128 bytes
// of every row. A thread of a quad takes 8 consecutive k of a row, 16 bytes, where mma would have
// it take pairs: a permutation of k that A and B share.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_out.cuh"
#include "kernels/cuda/mma.cuh"

namespace convoy::cuda {

inline constexpr int kChunks = 8;
inline constexpr int kUnitValues = 64;
inline constexpr int kUnitBytes = 2 * kUnitValues;

struct DecodeProblem {
  const __nv_bfloat16* weight;
  const __nv_bfloat16* x;
  ptrdiff_t x_row_stride;
  int out_features, in_features;
  int columns;
  int chunk_units;   // the last chunks may be shorter or empty
  int trigger_left;  // units that are left when the next kernel may begin
  LinearOut out;
};

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// Copies one unit of `kRows` rows after the other to shared memory, a warp at a time: 4 rows of 128
// bytes per instruction, zeros where there is nothing. Rows lie 128 bytes apart; the halves of odd
// rows change places, so that the 8 threads that read together (two rows, 64 bytes each) meet no
// bank twice.
template <int kRows>
class UnitCopy {
 public:
  __device__ UnitCopy(const __nv_bfloat16* base, ptrdiff_t row_stride, int rows, int k_begin,
                      int k_total, int lane)
      : source_(base + (lane / 8) * row_stride + k_begin + (lane % 8) * 8),
        row_step_(4 * row_stride),
        rows_left_(rows - lane / 8),
        k_left_(k_total - k_begin - (lane % 8) * 8),
        offset_(static_cast<uint32_t>((lane / 8) * kUnitBytes +
                                      ((lane % 8) ^ ((lane / 8 % 2) * 4)) * 16)) {}
  __device__ __forceinline__ void copy_next(uint32_t to) {
#pragma unroll
    for (int i = 0; i < (kRows + 3) / 4; ++i) {
      // One row alone: a quarter of the warp.
      if (kRows % 4 != 0 && offset_ >= kRows * kUnitBytes) break;
      copy_async_16(to + offset_ + static_cast<uint32_t>(i * 4 * kUnitBytes),
                    source_ + i * row_step_, k_left_ > 0 && 4 * i < rows_left_);
    }
    source_ += kUnitValues;
    k_left_ -= kUnitValues;
  }

 private:
  const __nv_bfloat16* source_;
  ptrdiff_t row_step_;
  int rows_left_, k_left_;
  uint32_t offset_;
};

// The sums of a warp: row tiles of 16 x column tiles of 8. A thread has rows lane / 4 (+ 8) and
// columns lane % 4 * 2 (+ 1) of each.
template <int kRowTiles, int kColumns>
struct DecodeSums {
  static constexpr int kColumnTiles = (kColumns + 7) / 8;
  float value[kRowTiles][kColumnTiles][4] = {};

  // Adds the products of a unit whose operands lie at these addresses of shared memory.
  __device__ __forceinline__ void multiply(uint32_t weights, uint32_t columns, int lane) {
    const int g = lane / 4;
    const uint32_t at = static_cast<uint32_t>(g * kUnitBytes + lane % 4 * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t swapped = at + static_cast<uint32_t>((half ^ (g & 1)) * 64);
      uint4 b[kColumnTiles];
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) {
        b[column] = make_uint4(0, 0, 0, 0);
        if (kColumns >= 8 || g < kColumns)
          b[column] = load_shared_16(columns + swapped + column * 8 * kUnitBytes);
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const uint4 low = load_shared_16(weights + swapped + tile * 16 * kUnitBytes);
        const uint4 high = load_shared_16(weights + swapped + (tile * 16 + 8) * kUnitBytes);
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column)
          mma_bf16(value[tile][column], {low.x, high.x, low.y, high.y}, {b[column].x, b[column].y});
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column)
          mma_bf16(value[tile][column], {low.z, high.z, low.w, high.w}, {b[column].z, b[column].w});
      }
    }
  }

  // As f32 [column][rows_per_column].
  __device__ __forceinline__ void store(float* to, int rows_per_column, int lane) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = column * 8 + lane % 4 * 2 + i % 2;
          const int row = tile * 16 + lane / 4 + i / 2 * 8;
          if (c < kColumns) to[c * rows_per_column + row] = value[tile][column][i];
        }
      }
    }
  }
};

// Up to 16 columns. Each warp has a chunk of K and a ring of its own, so that nothing ties warps
// together before the chunks are added.
template <int kRowTiles_, int kColumns_, int kStages_>
struct NarrowTile {
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kColumns = kColumns_;  // 1, or a multiple of 8
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 32 * kChunks;
  static constexpr int kClusterBlocks = 1;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kStageBytes = (kRows + kColumns) * kUnitBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;  // of one warp
  static constexpr int kSharedBytes = kChunks * kRingBytes;
  // A warp's sums take the place of its ring.
  static_assert(kRows * kColumns * 4 <= kRingBytes);
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads) narrow_kernel(const DecodeProblem p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kStages = Tile::kStages;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_k = warp * p.chunk_units * kUnitValues;
  const uint32_t ring = shared_address(shared) + static_cast<uint32_t>(warp * Tile::kRingBytes);
  constexpr uint32_t kColumnsAt = Tile::kRows * kUnitBytes;
  UnitCopy<Tile::kRows> weights(p.weight + static_cast<ptrdiff_t>(first_row) * p.in_features,
                                p.in_features, p.out_features - first_row, first_k, p.in_features,
                                lane);
  UnitCopy<Tile::kColumns> columns(p.x, p.x_row_stride, p.columns, first_k, p.in_features, lane);

  // Weights are nobody's output: the ring fills while the kernels before this one end. (Prefetches
  // into L2 beyond the ring were measured to cost more than they gain.)
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < p.chunk_units) weights.copy_next(ring + stage * Tile::kStageBytes);
    commit_copies();
  }
  grid_dependency_wait();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < p.chunk_units) columns.copy_next(ring + stage * Tile::kStageBytes + kColumnsAt);
    commit_copies();
  }

  DecodeSums<Tile::kRowTiles, Tile::kColumns> sums;
  uint32_t stage = ring;
  for (int unit = 0; unit < p.chunk_units; ++unit) {
    wait_copies<kStages - 1>();
    __syncwarp();
    sums.multiply(stage, stage + kColumnsAt, lane);
    __syncwarp();
    if (unit + kStages < p.chunk_units) {
      weights.copy_next(stage);
      columns.copy_next(stage + kColumnsAt);
    }
    commit_copies();
    if (p.chunk_units - unit == p.trigger_left) allow_dependents();
    stage += Tile::kStageBytes;
    if (stage == ring + Tile::kRingBytes) stage = ring;
  }
  float* partials = reinterpret_cast<float*>(shared);
  constexpr int kPartialStep = Tile::kRingBytes / 4;
  sums.store(partials + warp * kPartialStep, Tile::kRows, lane);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * p.columns; i += Tile::kThreads) {
    float sum = 0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) sum += partials[chunk * kPartialStep + i];
    const int row = first_row + i % Tile::kRows;
    if (row < p.out_features) p.out.store(i / Tile::kRows, row, sum);
  }
}

// More columns: a cluster of kChunks blocks has the rows of one tile, each block a chunk of K. Its
// warps share the columns' ring, for these are read anew for every tile of rows.
template <int kColumns_, int kStages_>
struct WideTile {
  static constexpr int kWarps = 4;
  static constexpr int kRowTiles = 2;  // of a warp
  static constexpr int kColumns = kColumns_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kClusterBlocks = kChunks;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kWarpColumns = kColumns / kWarps;  // that a warp copies
  static constexpr int kStageBytes = (kRows + kColumns) * kUnitBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kBlocks = kColumns <= 32 ? 3 : 2;  // that registers must allow
  static_assert(kRows * kColumns * 4 <= kSharedBytes);
};

#if __CUDA_ARCH__ >= 900
// What a block wrote to its memory before is visible to the cluster afterwards.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// What block `rank` of the cluster has at the address that is `local` here.
__device__ __forceinline__ float load_from_block(uint32_t local, int rank) {
  uint32_t remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    wide_kernel(const DecodeProblem p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kAhead = Tile::kStages - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(blockIdx.x) % kChunks;
  const int first_row = static_cast<int>(blockIdx.x) / kChunks * Tile::kRows;
  const int first_k = rank * p.chunk_units * kUnitValues;
  const uint32_t ring = shared_address(shared);
  const uint32_t rows_at = static_cast<uint32_t>(warp * Tile::kWarpRows * kUnitBytes);
  constexpr uint32_t kColumnsAt = Tile::kRows * kUnitBytes;
  const uint32_t copied_columns_at =
      kColumnsAt + static_cast<uint32_t>(warp * Tile::kWarpColumns * kUnitBytes);
  const int warp_row = first_row + warp * Tile::kWarpRows;
  const int warp_column = warp * Tile::kWarpColumns;
  UnitCopy<Tile::kWarpRows> weights(p.weight + static_cast<ptrdiff_t>(warp_row) * p.in_features,
                                    p.in_features, p.out_features - warp_row, first_k,
                                    p.in_features, lane);
  UnitCopy<Tile::kWarpColumns> columns(p.x + warp_column * p.x_row_stride, p.x_row_stride,
                                       p.columns - warp_column, first_k, p.in_features, lane);
  // As in narrow_kernel.
#pragma unroll
  for (int stage = 0; stage < kAhead; ++stage) {
    if (stage < p.chunk_units) weights.copy_next(ring + stage * Tile::kStageBytes + rows_at);
    commit_copies();
  }
  grid_dependency_wait();
#pragma unroll
  for (int stage = 0; stage < kAhead; ++stage) {
    if (stage < p.chunk_units)
      columns.copy_next(ring + stage * Tile::kStageBytes + copied_columns_at);
    commit_copies();
  }

  DecodeSums<Tile::kRowTiles, Tile::kColumns> sums;
  uint32_t stage = ring, next = ring + kAhead * Tile::kStageBytes;
  for (int unit = 0; unit < p.chunk_units; ++unit) {
    wait_copies<kAhead - 1>();
    __syncthreads();  // the unit is complete, and nobody reads the one before it any more
    if (unit + kAhead < p.chunk_units) {
      weights.copy_next(next + rows_at);
      columns.copy_next(next + copied_columns_at);
    }
    commit_copies();
    if (p.chunk_units - unit == p.trigger_left) allow_dependents();
    sums.multiply(stage + rows_at, stage + kColumnsAt, lane);
    next = stage;
    stage += Tile::kStageBytes;
    if (stage == ring + Tile::kSharedBytes) stage = ring;
  }
  __syncthreads();
  sums.store(reinterpret_cast<float*>(shared) + warp * Tile::kWarpRows, Tile::kRows, lane);
  cluster_barrier();
  for (int i = rank * Tile::kThreads + static_cast<int>(threadIdx.x); i < Tile::kRows * p.columns;
       i += kChunks * Tile::kThreads) {
    float sum = 0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      sum += load_from_block(ring + static_cast<uint32_t>(i * 4), chunk);
    const int row = first_row + i % Tile::kRows;
    if (row < p.out_features) p.out.store(i / Tile::kRows, row, sum);
  }
  cluster_barrier();  // a block's memory must outlive its readers
#endif
}

}  // namespace convoy::cuda
