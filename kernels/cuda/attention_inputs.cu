// What comes between the projection and attention: norms and rotation of queries and keys, and the
// cache's new keys and values.
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kv_dtype.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxDim = 256;
constexpr int kVector = cuda::kVectorValues;

struct Rotation {
  float cosine[kMaxDim / 2];
  float sine[kMaxDim / 2];
};

// What one thread needs for its pair's angle; constant for the life of the model, so it may be read
// before earlier kernels are done.
struct Pair {
  float inv_freq = 0.0F;
  int axis = 0;
};

__device__ __forceinline__ Pair pair_of_thread(const float* inv_freq, const int32_t* axis,
                                               int pairs) {
  const int pair = static_cast<int>(threadIdx.x);
  return pair < pairs ? Pair{inv_freq[pair], axis[pair]} : Pair{};
}

// Cosines and sines of a column's angles, one thread each; the block's barrier comes after it. The
// accurate functions on purpose: angles reach 262143 radians.
__device__ __forceinline__ void find_angles(const ControlRow& control, const Pair& pair, int pairs,
                                            Rotation& rotation) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= pairs) return;
  const int position = pair.axis == 0   ? control.rope_position[0]
                       : pair.axis == 1 ? control.rope_position[1]
                                        : control.rope_position[2];
  sincosf(__fmul_rn(static_cast<float>(position), pair.inv_freq), &rotation.sine[i],
          &rotation.cosine[i]);
}

// A control row in two loads.
__device__ __forceinline__ ControlRow control_of(const StepView& step, int column) {
  const auto* const words = reinterpret_cast<const uint4*>(step.control + column);
  const uint4 halves[2] = {words[0], words[1]};
  ControlRow row;
  memcpy(&row, halves, sizeof(row));
  return row;
}

__device__ __forceinline__ bool live(const StepView& step, const ControlRow& control, int column) {
  return column % step.width < control.valid_columns;
}

// The page of a column's key and value.
__device__ __forceinline__ int page_of(const KvPlanes& cache, const ControlRow& control) {
  const int block = control.cache_position / kPageTokens;
  if (block >= cache.max_pages_per_row) __trap();  // a broken invariant, as CONVOY_CHECK
  return cache
      .block_tables[static_cast<ptrdiff_t>(control.kv_row) * cache.max_pages_per_row + block];
}

// Where a column's key or value of one KV head lies in its plane of bf16 values.
__device__ __forceinline__ ptrdiff_t cache_offset(const KvPlanes& cache, const ControlRow& control,
                                                  int head) {
  return cuda::page_offset(cache, page_of(cache, control), head) +
         static_cast<ptrdiff_t>(control.cache_position % kPageTokens) * cache.head_dim;
}

// One warp norms and rotates one head, whose values 8l.. lie in thread l; `weight` are its own.
__device__ __forceinline__ void norm_and_rotate(float (&values)[kVector],
                                                const float (&weight)[kVector], int dim, float eps,
                                                int pairs, const Rotation& rotation, float* row) {
  const int first = static_cast<int>(threadIdx.x % 32) * kVector;
  float squares = 0.0F;
#pragma unroll
  for (const float value : values) squares = fmaf(value, value, squares);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    squares += __shfl_xor_sync(~0U, squares, distance);
  const float scale = rsqrtf(squares / static_cast<float>(dim) + eps);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] = values[i] * scale * (1.0F + weight[i]);
    if (first < 2 * pairs) row[first + i] = values[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const int d = first + i;
    if (d < pairs) {
      values[i] = values[i] * rotation.cosine[d] - row[d + pairs] * rotation.sine[d];
    } else if (d < 2 * pairs) {
      values[i] =
          values[i] * rotation.cosine[d - pairs] + row[d - pairs] * rotation.sine[d - pairs];
    }
  }
}

// One warp's head of a row of the projection: queries (gates lie between them), then keys, then
// values.
struct Head {
  bool exists, is_query, is_key, is_mine;  // the last one: this thread has values of it
  int kv_head;
  __nv_bfloat16* from;  // this thread's values
};

__device__ __forceinline__ Head head_of_warp(const AttentionInputsArgs& args, int column) {
  const int kv_heads = args.cache.kv_heads;
  const int dim = args.cache.head_dim;
  const int head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int first = static_cast<int>(threadIdx.x % 32) * kVector;
  Head result;
  result.is_query = head < args.heads;
  result.is_key = !result.is_query && head < args.heads + kv_heads;
  result.exists = head < args.heads + 2 * kv_heads;
  result.is_mine = result.exists && first < dim;
  result.kv_head = result.is_query ? 0 : (head - args.heads) % kv_heads;
  result.from = static_cast<__nv_bfloat16*>(args.qkv) + column * args.column_stride +
                (result.is_query ? 2 * head : args.heads + head) * dim + first;
  return result;
}

// Stores a warp's key or value; `control` is its column's.
template <KvDtype kDtype>
__device__ __forceinline__ void store_head(const KvPlanes& cache, const ControlRow& control,
                                           const Head& head, const float (&values)[kVector]) {
  if (!head.exists) return;
  std::byte* const block = cuda::kv_block<kDtype>(cache, head.is_key ? cache.k : cache.v,
                                                  page_of(cache, control), head.kv_head);
  cuda::store_quantised<kDtype>(block, control.cache_position % kPageTokens, cache.head_dim,
                                values);
}

// A warp per column and head.
template <KvDtype kDtype>
__global__ void __launch_bounds__(kThreads) attention_inputs_kernel(AttentionInputsArgs args) {
  constexpr bool kQuantised = kDtype != KvDtype::bf16;
  __shared__ Rotation rotation;
  __shared__ float rows[kWarps][kMaxDim];
  cuda::allow_dependents();
  const int pairs = args.rotary_dim / 2;
  const int column = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(threadIdx.x % 32) * kVector;
  const Head head = head_of_warp(args, column);
  const Pair pair = pair_of_thread(args.inv_freq, args.axis, pairs);
  float weight[kVector] = {};
  if (head.is_mine && (head.is_query || head.is_key)) {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      weight[i] = (head.is_query ? args.q_norm : args.k_norm)[first + i];
  }
  cuda::grid_dependency_wait();
  uint4 bits{};
  if (head.is_mine) bits = *reinterpret_cast<const uint4*>(head.from);
  const ControlRow control = control_of(args.step, column);
  if (!live(args.step, control, column)) return;
  __nv_bfloat16* to = head.from;
  if (!kQuantised && head.is_mine && !head.is_query) {
    to = static_cast<__nv_bfloat16*>(head.is_key ? args.cache.k : args.cache.v) +
         cache_offset(args.cache, control, head.kv_head) + first;
  }
  find_angles(control, pair, pairs, rotation);
  __syncthreads();
  const bool is_stored = kQuantised && !head.is_query;
  if (head.is_query || head.is_key || is_stored) {
    float values[kVector];
    cuda::unpack_bf16(bits.x, values[0], values[1]);
    cuda::unpack_bf16(bits.y, values[2], values[3]);
    cuda::unpack_bf16(bits.z, values[4], values[5]);
    cuda::unpack_bf16(bits.w, values[6], values[7]);
    if (head.is_query || head.is_key) {
      norm_and_rotate(values, weight, args.cache.head_dim, args.eps, pairs, rotation,
                      rows[threadIdx.x / 32]);
    }
    if constexpr (kQuantised) {
      if (is_stored) {
        store_head<kDtype>(args.cache, control, head, values);
        return;
      }
    }
    bits = make_uint4(cuda::pack_bf16(values[0], values[1]), cuda::pack_bf16(values[2], values[3]),
                      cuda::pack_bf16(values[4], values[5]), cuda::pack_bf16(values[6], values[7]));
  }
  if (head.is_mine) *reinterpret_cast<uint4*>(to) = bits;
}

// A block per column.
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArgs args) {
  __shared__ Rotation rotation;
  cuda::allow_dependents();
  const int pairs = args.rotary_dim / 2;
  const Pair pair_of_angle = pair_of_thread(args.inv_freq, args.axis, pairs);
  cuda::grid_dependency_wait();
  const int column = static_cast<int>(blockIdx.x);
  const ControlRow control = control_of(args.step, column);
  if (!live(args.step, control, column)) return;
  find_angles(control, pair_of_angle, pairs, rotation);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * pairs; i += kThreads) {
    const int pair = i % pairs;
    __nv_bfloat16* const first = static_cast<__nv_bfloat16*>(args.x) + column * args.column_stride +
                                 i / pairs * args.head_stride + pair;
    __nv_bfloat16* const second = first + pairs;
    const float a = __bfloat162float(*first);
    const float b = __bfloat162float(*second);
    *first = __float2bfloat16_rn(a * rotation.cosine[pair] - b * rotation.sine[pair]);
    *second = __float2bfloat16_rn(b * rotation.cosine[pair] + a * rotation.sine[pair]);
  }
}

// A block per column, a warp per head.
template <KvDtype kDtype, bool kVectorised>
__global__ void __launch_bounds__(kThreads) quantised_kv_write_kernel(KvWriteArgs args) {
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int column = static_cast<int>(blockIdx.x);
  const ControlRow control = control_of(args.step, column);
  if (!live(args.step, control, column)) return;
  const KvPlanes& cache = args.cache;
  const int page = page_of(cache, control);
  const int slot = control.cache_position % kPageTokens;
  const auto* const k = static_cast<const __nv_bfloat16*>(args.k) + column * args.k_column_stride;
  const auto* const v = static_cast<const __nv_bfloat16*>(args.v) + column * args.v_column_stride;
  const int vector = static_cast<int>(threadIdx.x % 32);
  for (int i = static_cast<int>(threadIdx.x / 32); i < 2 * cache.kv_heads; i += kWarps) {
    const int head = i / 2;
    const bool is_key = i % 2 == 0;
    float values[kVector];
    cuda::load_vector<kVectorised>((is_key ? k : v) + head * cache.head_dim, vector, cache.head_dim,
                                   values);
    cuda::store_quantised<kDtype>(
        cuda::kv_block<kDtype>(cache, is_key ? cache.k : cache.v, page, head), slot, cache.head_dim,
        values);
  }
}

// A block per column. kVectorised: sixteen bytes at a time.
template <bool kVectorised>
__global__ void __launch_bounds__(kThreads) kv_write_kernel(KvWriteArgs args) {
  using Unit = std::conditional_t<kVectorised, uint4, __nv_bfloat16>;
  constexpr int kUnitValues = kVectorised ? kVector : 1;
  cuda::allow_dependents();
  cuda::grid_dependency_wait();
  const int column = static_cast<int>(blockIdx.x);
  const ControlRow control = control_of(args.step, column);
  if (!live(args.step, control, column)) return;
  const int dim = args.cache.head_dim;
  const auto* const k = static_cast<const __nv_bfloat16*>(args.k) + column * args.k_column_stride;
  const auto* const v = static_cast<const __nv_bfloat16*>(args.v) + column * args.v_column_stride;
  for (int i = static_cast<int>(threadIdx.x) * kUnitValues; i < args.cache.kv_heads * dim;
       i += kThreads * kUnitValues) {
    const ptrdiff_t to = cache_offset(args.cache, control, i / dim) + i % dim;
    *reinterpret_cast<Unit*>(static_cast<__nv_bfloat16*>(args.cache.k) + to) =
        *reinterpret_cast<const Unit*>(k + i);
    *reinterpret_cast<Unit*>(static_cast<__nv_bfloat16*>(args.cache.v) + to) =
        *reinterpret_cast<const Unit*>(v + i);
  }
}

void check_rotation(int rotary_dim, int limit) {
  CONVOY_CHECK_OP(rotary_dim, >, 0);
  CONVOY_CHECK_OP(rotary_dim % 2, ==, 0);
  CONVOY_CHECK_OP(rotary_dim, <=, limit);
}

void check_planes(const KvPlanes& cache) {
  CONVOY_CHECK_OP(cache.kv_heads, >, 0);
  CONVOY_CHECK_OP(cache.head_dim, >, 0);
  CONVOY_CHECK_OP(cache.head_dim % 16, ==, 0);
  CONVOY_CHECK_OP(cache.head_dim, <=, kMaxDim);
  CONVOY_CHECK_OP(cache.max_pages_per_row, >, 0);
  CONVOY_CHECK(has_kv_dtype(DeviceKind::cuda, cache.dtype), kv_dtype_name(cache.dtype));
  CONVOY_CHECK(cuda::vectorised(cache.k, 0) && cuda::vectorised(cache.v, 0),
               "planes are 16-byte aligned");
}

dim3 columns_of(const StepView& step) {
  return dim3(static_cast<unsigned>(step.columns()));
}

}  // namespace

void CudaOpSet::attention_inputs(Stream& stream, const AttentionInputsArgs& args) {
  check_planes(args.cache);
  check_rotation(args.rotary_dim, args.cache.head_dim);
  CONVOY_CHECK_OP(args.heads, >, 0);
  CONVOY_CHECK(cuda::vectorised(args.qkv, args.column_stride), "rows are 16-byte aligned");
  const int rows = args.heads + 2 * args.cache.kv_heads;
  cuda::with_kv_dtype(args.cache.dtype, [&](auto dtype) {
    cuda::launch(attention_inputs_kernel<dtype>,
                 {.grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps),
                               static_cast<unsigned>(args.step.columns())),
                  .block = dim3(kThreads)},
                 handle_of(stream), args);
  });
}

void CudaOpSet::rope(Stream& stream, const RopeArgs& args) {
  check_rotation(args.rotary_dim, kMaxDim);
  cuda::launch(rope_kernel, {.grid = columns_of(args.step), .block = dim3(kThreads)},
               handle_of(stream), args);
}

void CudaOpSet::kv_write(Stream& stream, const KvWriteArgs& args) {
  check_planes(args.cache);
  const bool vectorised = cuda::vectorised(args.k, args.k_column_stride) &&
                          cuda::vectorised(args.v, args.v_column_stride);
  cuda::with_kv_dtype(args.cache.dtype, [&](auto dtype) {
    void (*kernel)(KvWriteArgs) = nullptr;
    if constexpr (dtype == KvDtype::bf16) {
      kernel = vectorised ? kv_write_kernel<true> : kv_write_kernel<false>;
    } else {
      kernel = vectorised ? quantised_kv_write_kernel<dtype, true>
                          : quantised_kv_write_kernel<dtype, false>;
    }
    cuda::launch(kernel, {.grid = columns_of(args.step), .block = dim3(kThreads)},
                 handle_of(stream), args);
  });
}

}  // namespace convoy
