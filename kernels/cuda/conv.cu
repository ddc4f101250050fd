#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/bf16_vector.cuh"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gdn.cuh"
#include "kernels/cuda/launch.cuh"

namespace convoy {
namespace {

constexpr int kThreads = 128;
constexpr int kHistory = 3;
constexpr int kVector = 4;  // channels of one thread where addresses allow it
// Columns of one thread. It reads the three before them again.
constexpr int kRun = 8;

// Neighbouring channels of one thread, as they are stored and as f32.
template <int kChannels>
using Packed = std::conditional_t<kChannels == 1, __nv_bfloat16, uint2>;
template <int kChannels>
struct Channels {
  float x[kChannels];
};

__device__ __forceinline__ Channels<1> unpack(__nv_bfloat16 packed) {
  return {__bfloat162float(packed)};
}
__device__ __forceinline__ Channels<kVector> unpack(const uint2& packed) {
  Channels<kVector> values;
  cuda::unpack_bf16(packed.x, values.x[0], values.x[1]);
  cuda::unpack_bf16(packed.y, values.x[2], values.x[3]);
  return values;
}

__device__ __forceinline__ void store_channels(__nv_bfloat16* row, const Channels<1>& values) {
  *row = __float2bfloat16_rn(values.x[0]);
}
__device__ __forceinline__ void store_channels(__nv_bfloat16* row,
                                               const Channels<kVector>& values) {
  *reinterpret_cast<uint2*>(row) = make_uint2(cuda::pack_bf16(values.x[0], values.x[1]),
                                              cuda::pack_bf16(values.x[2], values.x[3]));
}

// One lane's part of a step for the channels of a thread.
template <int kChannels>
struct LaneChannels {
  const __nv_bfloat16* u;
  ptrdiff_t u_stride;
  ptrdiff_t channels;

  __device__ __forceinline__ Packed<kChannels> load(int column) const {
    return *reinterpret_cast<const Packed<kChannels>*>(u + column * u_stride);
  }
  // Row j of a slot; null: the start of a sequence.
  __device__ __forceinline__ Channels<kChannels> load_state(const float* slot, int j) const {
    Channels<kChannels> values{};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (slot != nullptr) values.x[c] = slot[j * channels + c];
    }
    return values;
  }
  // Writes the last three inputs of `live` columns that follow `before`.
  __device__ __forceinline__ void store_state(const Channels<kChannels> (&before)[kHistory],
                                              int live, float* slot) const {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      Channels<kChannels> values;
      const int column = live - kHistory + j;
      if (column >= 0) {
        values = unpack(load(column));
      } else {
        values = column == -1 ? before[2] : before[1];  // -3 would need live == 0
      }
#pragma unroll
      for (int c = 0; c < kChannels; ++c) slot[j * channels + c] = values.x[c];
    }
  }
};

// Grid: (channels, runs of columns, lanes). The first run's threads alone touch the state, so that
// it may be read and written in one slot.
template <int kChannels>
__global__ void __launch_bounds__(kThreads) causal_conv_kernel(const CausalConvArgs args) {
  cuda::allow_dependents();
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kChannels;
  const bool inside = channel < args.channels;
  float4 weight[kChannels] = {};
  if (inside) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      weight[c] = __ldg(reinterpret_cast<const float4*>(args.weight) + channel + c);
  }
  cuda::grid_dependency_wait();
  if (!inside) return;
  const int width = args.step.width, first = static_cast<int>(blockIdx.y) * kRun;
  const ptrdiff_t lane_column = static_cast<ptrdiff_t>(blockIdx.z) * width;
  const LaneChannels<kChannels> lane{
      static_cast<const __nv_bfloat16*>(args.u) + lane_column * args.u_column_stride + channel,
      args.u_column_stride, args.channels};
  // All loads are on their way before the first use, dead columns' too: how many are alive is on
  // its way itself.
  Packed<kChannels> columns[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (first + i < width) columns[i] = lane.load(first + i);
  }
  const ControlRow& control = args.step.control[lane_column];
  const int live = cuda::live_columns(control, width);
  Channels<kChannels> window[kHistory];
  if (first > 0) {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) window[j] = unpack(lane.load(first - kHistory + j));
  } else if (live > 0) {
    const ptrdiff_t slot_size = static_cast<ptrdiff_t>(kHistory) * args.channels;
    const float* const source = cuda::state_slot(args.state, control.state_source, slot_size);
#pragma unroll
    for (int j = 0; j < kHistory; ++j)
      window[j] = lane.load_state(source == nullptr ? nullptr : source + channel, j);
    lane.store_state(window, live, args.state + control.state_destination * slot_size + channel);
  }
  auto* out =
      static_cast<__nv_bfloat16*>(args.out) + (lane_column + first) * lane.channels + channel;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (first + i >= width) break;
    Channels<kChannels> result{};
    if (first + i < live) {
      const Channels<kChannels> now = unpack(columns[i]);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float sum = weight[c].x * window[0].x[c];
        sum = fmaf(weight[c].y, window[1].x[c], sum);
        sum = fmaf(weight[c].z, window[2].x[c], sum);
        result.x[c] = cuda::silu_of(fmaf(weight[c].w, now.x[c], sum));
      }
      window[0] = window[1], window[1] = window[2], window[2] = now;
    }
    store_channels(out + i * lane.channels, result);
  }
}

template <int kChannels>
void launch_causal_conv(cudaStream_t stream, const CausalConvArgs& args) {
  const int per_block = kThreads * kChannels;
  const dim3 grid(static_cast<unsigned>((args.channels + per_block - 1) / per_block),
                  static_cast<unsigned>((args.step.width + kRun - 1) / kRun),
                  static_cast<unsigned>(args.step.lanes));
  cuda::launch(causal_conv_kernel<kChannels>, {.grid = grid, .block = dim3(kThreads)}, stream,
               args);
}

}  // namespace

void CudaOpSet::causal_conv(Stream& stream, const CausalConvArgs& args) {
  CONVOY_CHECK_OP(args.channels, >, 0);
  CONVOY_CHECK_OP(args.step.lanes, <=, kMaxLanes);
  CONVOY_CHECK_OP(reinterpret_cast<uintptr_t>(args.weight) % 16, ==, 0U);
  if (args.step.columns() == 0) return;
  const bool vectorised =
      cuda::vectorised(args.u, args.u_column_stride) && cuda::vectorised(args.out, args.channels);
  if (vectorised) {
    launch_causal_conv<kVector>(handle_of(stream), args);
  } else {
    launch_causal_conv<1>(handle_of(stream), args);
  }
}

}  // namespace convoy
