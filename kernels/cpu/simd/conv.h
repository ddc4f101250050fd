// The causal convolution of one lane over a range of channels.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

void conv_channels(const CausalConvArgs& args, int lane, int channel_begin, int channel_end) {
  const ptrdiff_t channels = args.channels;
  const int first_column = lane * args.step.width;
  const ControlRow& control = args.step.control[first_column];
  const int live = std::min(control.valid_columns, args.step.width);
  const float* source =
      control.state_source < 0 ? nullptr : args.state + control.state_source * 3 * channels;
  for (int c = channel_begin; c < channel_end; c += kLanes) {
    const int left = channel_end - c;
    float taps[4][kLanes] = {};
    for (int i = 0; i < kLanes && i < left; ++i) {
      for (int j = 0; j < 4; ++j) taps[j][i] = args.weight[static_cast<ptrdiff_t>(c + i) * 4 + j];
    }
    const Vec w0 = load(taps[0]), w1 = load(taps[1]), w2 = load(taps[2]), w3 = load(taps[3]);
    Vec history[3] = {zero(), zero(), zero()};
    for (int j = 0; source != nullptr && j < 3; ++j)
      history[j] = load_first(source + j * channels + c, left);
    const float* u = static_cast<const float*>(args.u) + first_column * args.u_column_stride + c;
    float* out = static_cast<float*>(args.out) + first_column * channels + c;
    for (int i = 0; i < live; ++i) {
      const Vec now = load_first(u + i * args.u_column_stride, left);
      Vec sum = mul(w0, history[0]);
      sum = fma(w1, history[1], sum);
      sum = fma(w2, history[2], sum);
      sum = fma(w3, now, sum);
      store_first(out + i * channels, silu(sum), left);
      history[0] = history[1];
      history[1] = history[2];
      history[2] = now;
    }
    for (int i = std::max(live, 0); i < args.step.width; ++i)
      store_first(out + i * channels, zero(), left);
    if (live <= 0) continue;
    float* destination = args.state + control.state_destination * 3 * channels + c;
    for (int j = 0; j < 3; ++j) store_first(destination + j * channels, history[j], left);
  }
}

}  // namespace
}  // namespace convoy::cpu
