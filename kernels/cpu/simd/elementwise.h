// Embedding, SwiGLU, GDN gates, rotary embedding and argmax.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

constexpr int kMaxRotaryPairs = 128;

CONVOY_SIMD float widen_bf16(uint16_t x) {
  const uint32_t wide = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

void embed_rows(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  for (int64_t row = begin; row < end; ++row) {
    const size_t id = static_cast<size_t>(args.ids[row]);
    // In the packed form the values of one output lie 64 apart.
    const bool packed = args.table == nullptr;
    const uint16_t* from =
        packed ? args.packed.data + (id / 64) * hidden * 64 + id % 64 : args.table + id * hidden;
    const size_t step = packed ? 64 : 1;
    float* out = static_cast<float*>(args.out) + static_cast<size_t>(row) * hidden;
    for (size_t i = 0; i < hidden; ++i) out[i] = widen_bf16(from[i * step]);
  }
}

void swiglu_rows(const SwigluArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* gate = static_cast<const float*>(args.gate_up) + row * 2 * args.size;
    const float* up = gate + args.size;
    float* out = static_cast<float*>(args.out) + row * args.size;
    for (int i = 0; i < args.size; i += kLanes) {
      const int left = args.size - i;
      store_first(out + i, mul(silu(load_first(gate + i, left)), load_first(up + i, left)), left);
    }
  }
}

void gdn_gate_rows(const GdnGatesArgs& args, int64_t begin, int64_t end) {
  const int heads = args.value_heads;
  for (int64_t row = begin; row < end; ++row) {
    const float* a = static_cast<const float*>(args.a) + row * args.a_row_stride;
    const float* b = static_cast<const float*>(args.b) + row * args.b_row_stride;
    float* g = args.g + row * heads;
    float* beta = args.beta + row * heads;
    for (int h = 0; h < heads; h += kLanes) {
      const int left = heads - h;
      float softplus[kLanes] = {};
      for (int i = 0; i < kLanes && i < left; ++i) {
        const float x = a[h + i] + args.dt_bias[h + i];
        softplus[i] = x > 20.0F ? x : std::log1p(std::exp(x));
      }
      const Vec rate = sub(zero(), exp(load_first(args.a_log + h, left)));
      store_first(g + h, mul(rate, load(softplus)), left);
      store_first(beta + h, sigmoid(load_first(b + h, left)), left);
    }
  }
}

// Rotates pairs (i, i + pairs) of one head.
CONVOY_SIMD void rotate_head(float* x, int pairs, const float* cosines, const float* sines) {
  for (int i = 0; i < pairs; i += kLanes) {
    const int left = pairs - i;
    const Vec first = load_first(x + i, left);
    const Vec second = load_first(x + pairs + i, left);
    const Vec c = load(cosines + i);
    const Vec s = load(sines + i);
    store_first(x + i, sub(mul(first, c), mul(second, s)), left);
    store_first(x + pairs + i, add(mul(second, c), mul(first, s)), left);
  }
}

void rope_columns(const RopeArgs& args, int64_t begin, int64_t end) {
  float cosines[kMaxRotaryPairs + kLanes] = {};
  float sines[kMaxRotaryPairs + kLanes] = {};
  const int pairs = args.rotary_dim / 2;
  for (int64_t column = begin; column < end; ++column) {
    const ControlRow& control = args.step.control[column];
    if (column % args.step.width >= control.valid_columns) continue;
    for (int i = 0; i < pairs; ++i) {
      const float angle =
          static_cast<float>(control.rope_position[args.axis[i]]) * args.inv_freq[i];
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
    for (int head = 0; head < args.heads; ++head) {
      rotate_head(
          static_cast<float*>(args.x) + column * args.column_stride + head * args.head_stride,
          pairs, cosines, sines);
    }
  }
}

// The first of the largest values of [begin, end); index -1 when nothing is above -infinity.
void argmax_range(const float* values, int begin, int end, float* best_value, int32_t* best_index) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Vec best = set1(kLowest);
  IntVec best_start = set1_int(-1);
  for (int i = begin; i < end; i += kLanes) {
    Vec value = load_first(values + i, end - i);
    if (end - i < kLanes) {
      float lanes[kLanes];
      store(lanes, value);
      for (int lane = end - i; lane < kLanes; ++lane) lanes[lane] = kLowest;
      value = load(lanes);
    }
    best_start = select_greater_int(value, best, set1_int(i), best_start);
    best = select_greater(value, best, value, best);
  }
  float lanes[kLanes];
  int32_t starts[kLanes];
  store(lanes, best);
  store_int(starts, best_start);
  *best_value = kLowest;
  *best_index = -1;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (starts[lane] < 0) continue;
    const int32_t index = starts[lane] + lane;
    if (lanes[lane] > *best_value || (lanes[lane] == *best_value && index < *best_index)) {
      *best_value = lanes[lane];
      *best_index = index;
    }
  }
}

}  // namespace
}  // namespace convoy::cpu
