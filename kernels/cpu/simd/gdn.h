// The gated delta rule: normalising queries and keys, the recurrent form and the form over chunks
// of 64 columns. Every value column of a state is independent, so both forms walk over blocks of
// them that fit the first-level cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

constexpr int kChunk = 64;
constexpr int kMaxKeyDim = 256;
constexpr int kValueBlock = 64;

// Where one (lane, value head) finds its rows.
struct GdnHead {
  int key_dim, value_dim;
  ptrdiff_t qkv_stride, gate_stride, out_stride;
  const float* q;
  const float* k;
  const float* v;
  const float* g;
  const float* beta;
  float* out;
  const float* source;  // null: the zero state
  float* state;
  int live, width;
};

inline GdnHead gdn_head(const GdnArgs& args, int lane, int head) {
  const ptrdiff_t column = static_cast<ptrdiff_t>(lane) * args.step.width;
  const ControlRow& control = args.step.control[column];
  const ptrdiff_t keys = static_cast<ptrdiff_t>(args.key_heads) * args.key_dim;
  const ptrdiff_t values = static_cast<ptrdiff_t>(args.value_heads) * args.value_dim;
  const ptrdiff_t state_size = static_cast<ptrdiff_t>(args.key_dim) * args.value_dim;
  const ptrdiff_t key_head = head / (args.value_heads / args.key_heads);
  GdnHead h{};
  h.key_dim = args.key_dim;
  h.value_dim = args.value_dim;
  h.qkv_stride = 2 * keys + values;
  h.gate_stride = args.value_heads;
  h.out_stride = values;
  const float* row = static_cast<const float*>(args.qkv) + column * h.qkv_stride;
  h.q = row + key_head * args.key_dim;
  h.k = h.q + keys;
  h.v = row + 2 * keys + static_cast<ptrdiff_t>(head) * args.value_dim;
  h.g = args.g + column * h.gate_stride + head;
  h.beta = args.beta + column * h.gate_stride + head;
  h.out = static_cast<float*>(args.out) + column * h.out_stride +
          static_cast<ptrdiff_t>(head) * args.value_dim;
  const auto slot = [&](int index) {
    return args.state + (static_cast<ptrdiff_t>(index) * args.value_heads + head) * state_size;
  };
  h.width = args.step.width;
  h.live = std::min(control.valid_columns, h.width);
  h.source = control.state_source < 0 ? nullptr : slot(control.state_source);
  h.state = h.live > 0 ? slot(control.state_destination) : nullptr;
  return h;
}

CONVOY_SIMD void scale_to_unit(float* x, int size, float factor) {
  Vec squares = zero();
  for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const float scale = 1.0F / std::sqrt(sum_lanes(squares) + 1e-6F);
  for (int i = 0; i < size; i += kLanes) {
    store(x + i, mul(mul(load(x + i), set1(scale)), set1(factor)));
  }
}

// index = column * key_heads + key head.
void gdn_normalise(const GdnArgs& args, int64_t begin, int64_t end) {
  const int64_t keys = static_cast<int64_t>(args.key_heads) * args.key_dim;
  const int64_t stride = 2 * keys + static_cast<int64_t>(args.value_heads) * args.value_dim;
  const float q_factor = 1.0F / std::sqrt(static_cast<float>(args.key_dim));
  for (int64_t index = begin; index < end; ++index) {
    const int64_t column = index / args.key_heads;
    if (column % args.step.width >= args.step.control[column].valid_columns) continue;
    float* q =
        static_cast<float*>(args.qkv) + column * stride + (index % args.key_heads) * args.key_dim;
    scale_to_unit(q, args.key_dim, q_factor);
    scale_to_unit(q + keys, args.key_dim, 1.0F);
  }
}

inline void zero_dead_columns(const GdnHead& h) {
  for (int i = std::max(h.live, 0); i < h.width; ++i) {
    std::memset(h.out + i * h.out_stride, 0, static_cast<size_t>(h.value_dim) * sizeof(float));
  }
}

// One column for V vectors of value columns: reads `from`, writes `state` (they may be the same).
template <int V>
inline void recurrent_column(const GdnHead& h, int i, int value, const float* from) {
  const float* q = h.q + i * h.qkv_stride;
  const float* k = h.k + i * h.qkv_stride;
  const Vec decay = set1(exp1(h.g[i * h.gate_stride]));
  const Vec beta = set1(h.beta[i * h.gate_stride]);
  Vec prediction[V], delta[V], read[V];
#pragma GCC unroll 8
  for (int n = 0; n < V; ++n) prediction[n] = zero();
  for (int d = 0; d < h.key_dim; ++d) {
    const Vec key = set1(k[d]);
#pragma GCC unroll 8
    for (int n = 0; n < V; ++n) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(d) * h.value_dim + value + n * kLanes;
      const Vec decayed = from == nullptr ? zero() : mul(decay, load(from + at));
      store(h.state + at, decayed);
      prediction[n] = fma(key, decayed, prediction[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < V; ++n) {
    delta[n] = mul(beta, sub(load(h.v + i * h.qkv_stride + value + n * kLanes), prediction[n]));
    read[n] = zero();
  }
  for (int d = 0; d < h.key_dim; ++d) {
    const Vec key = set1(k[d]);
    const Vec query = set1(q[d]);
#pragma GCC unroll 8
    for (int n = 0; n < V; ++n) {
      float* at = h.state + static_cast<ptrdiff_t>(d) * h.value_dim + value + n * kLanes;
      const Vec updated = fma(key, delta[n], load(at));
      store(at, updated);
      read[n] = fma(query, updated, read[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < V; ++n) store(h.out + i * h.out_stride + value + n * kLanes, read[n]);
}

void gdn_recurrent_head(const GdnArgs& args, int lane, int head) {
  const GdnHead h = gdn_head(args, lane, head);
  constexpr int kBlock = 4;
  for (int value = 0; value < h.value_dim;) {
    const bool full = h.value_dim - value >= kBlock * kLanes;
    for (int i = 0; i < h.live; ++i) {
      const float* from = i == 0 ? h.source : h.state;
      if (full) {
        recurrent_column<kBlock>(h, i, value, from);
      } else {
        recurrent_column<1>(h, i, value, from);
      }
    }
    value += full ? kBlock * kLanes : kLanes;
  }
  zero_dead_columns(h);
}

// What a chunk's value columns share. Queries and keys are copied: their rows lie a power of two or
// nearly so apart, where they would push each other out of the cache. Rows and columns beyond `n`
// (a short last chunk) are never used, so that the decay of the whole chunk is that of its last
// real column.
struct ChunkShared {
  int n;
  float decay_to_end;              // exp(c_last), c the running sum of g inside the chunk
  float decay_from_start[kChunk];  // exp(c_i)
  float one[kChunk];
  float q[kChunk * kMaxKeyDim];  // [n][key_dim]
  float k[kChunk * kMaxKeyDim];
  float transposed[kMaxKeyDim * kChunk];  // k^T, then scaled by exp(c_last - c_j)
  float solve[kChunk * kChunk];           // -beta_i (k_i . k_j) exp(c_i - c_j) below the diagonal
  float read[kChunk * kChunk];  // (q_i . k_j) exp(c_i - c_j) on and below the diagonal, else 0
};

inline void copy_keys(const GdnHead& h, int first, ChunkShared& s) {
  const size_t bytes = static_cast<size_t>(h.key_dim) * sizeof(float);
  for (int i = 0; i < s.n; ++i) {
    std::memcpy(s.q + i * h.key_dim, h.q + (first + i) * h.qkv_stride, bytes);
    std::memcpy(s.k + i * h.key_dim, h.k + (first + i) * h.qkv_stride, bytes);
  }
  for (int d0 = 0; d0 < h.key_dim; d0 += kLanes) {
    for (int j = 0; j < kChunk; ++j) {
      for (int d = d0; d < d0 + kLanes; ++d)
        s.transposed[d * kChunk + j] = j < s.n ? s.k[j * h.key_dim + d] : 0.0F;
    }
  }
}

inline void prepare_chunk(const GdnHead& h, int first, ChunkShared& s) {
  copy_keys(h, first, s);
  float log_decay[kChunk];
  float sum = 0.0F;
  for (int i = 0; i < kChunk; ++i) {
    if (i < s.n) sum += h.g[(first + i) * h.gate_stride];
    log_decay[i] = sum;
  }
  for (int i = 0; i < kChunk; i += kLanes) store(s.decay_from_start + i, exp(load(log_decay + i)));
  for (int i = 0; i < kChunk; ++i) s.one[i] = 1.0F;
  s.decay_to_end = s.decay_from_start[s.n - 1];

  gemm({s.n, kChunk, h.key_dim, s.k, h.key_dim, s.transposed, kChunk, s.solve, kChunk, nullptr});
  gemm({s.n, kChunk, h.key_dim, s.q, h.key_dim, s.transposed, kChunk, s.read, kChunk, nullptr});
  for (int i = 0; i < s.n; ++i) {
    const Vec minus_beta = set1(-h.beta[(first + i) * h.gate_stride]);
    for (int j = 0; j < kChunk; j += kLanes) {
      // Above the diagonal the exponential may overflow; those lanes are replaced, not multiplied.
      const Vec decay = exp(sub(set1(log_decay[i]), load(log_decay + j)));
      float* solve = s.solve + i * kChunk + j;
      float* read = s.read + i * kChunk + j;
      store(solve, keep_first(mul(mul(minus_beta, load(solve)), decay), i - j));
      store(read, keep_first(mul(load(read), decay), i - j + 1));
    }
  }
  Vec to_end[kChunk / kLanes];
  for (int j = 0; j < kChunk; j += kLanes) {
    to_end[j / kLanes] = exp(sub(set1(log_decay[s.n - 1]), load(log_decay + j)));
  }
  for (int d = 0; d < h.key_dim; ++d) {
    for (int j = 0; j < kChunk; j += kLanes) {
      float* at = s.transposed + d * kChunk + j;
      store(at, mul(load(at), to_end[j / kLanes]));
    }
  }
}

// The chunk for value columns [value, value + columns): solves for the deltas, reads, updates the
// state in place.
inline void run_chunk(const GdnHead& h, int first, int value, int columns, const ChunkShared& s) {
  alignas(64) float delta[kChunk * kValueBlock];
  alignas(64) float out[kChunk * kValueBlock];
  float* state = h.state + value;
  gemm({s.n, columns, h.key_dim, s.k, h.key_dim, state, h.value_dim, delta, kValueBlock, nullptr});
  for (int i = 0; i < s.n; ++i) {
    const float* v = h.v + (first + i) * h.qkv_stride + value;
    const Vec decay = set1(-s.decay_from_start[i]);
    const Vec beta = set1(h.beta[(first + i) * h.gate_stride]);
    for (int n = 0; n < columns; n += kLanes) {
      float* at = delta + i * kValueBlock + n;
      store(at, mul(beta, fma(decay, load(at), load(v + n))));
    }
    // Row i of the unit lower triangular solve needs the finished rows before it.
    gemm({1, columns, i, s.solve + i * kChunk, kChunk, delta, kValueBlock, delta + i * kValueBlock,
          kValueBlock, s.one});
  }
  gemm({s.n, columns, h.key_dim, s.q, h.key_dim, state, h.value_dim, out, kValueBlock, nullptr});
  for (int i = 0; i < s.n; i += kLanes) {
    const int rows = std::min(kLanes, s.n - i);
    gemm({rows, columns, i + rows, s.read + i * kChunk, kChunk, delta, kValueBlock,
          out + i * kValueBlock, kValueBlock, s.decay_from_start + i});
  }
  for (int i = 0; i < s.n; ++i) {
    std::memcpy(h.out + (first + i) * h.out_stride + value, out + i * kValueBlock,
                static_cast<size_t>(columns) * sizeof(float));
  }
  float row_decay[kMaxKeyDim];
  for (int d = 0; d < h.key_dim; ++d) row_decay[d] = s.decay_to_end;
  gemm({h.key_dim, columns, s.n, s.transposed, kChunk, delta, kValueBlock, state, h.value_dim,
        row_decay});
}

void gdn_chunk_head(const GdnArgs& args, int lane, int head) {
  const GdnHead h = gdn_head(args, lane, head);
  zero_dead_columns(h);
  if (h.live <= 0) return;
  const size_t state_bytes =
      static_cast<size_t>(h.key_dim) * static_cast<size_t>(h.value_dim) * sizeof(float);
  if (h.source == nullptr) {
    std::memset(h.state, 0, state_bytes);
  } else if (h.source != h.state) {
    std::memcpy(h.state, h.source, state_bytes);
  }
  alignas(64) ChunkShared shared;
  for (int first = 0; first < h.live; first += kChunk) {
    shared.n = std::min(kChunk, h.live - first);
    prepare_chunk(h, first, shared);
    for (int value = 0; value < h.value_dim; value += kValueBlock) {
      run_chunk(h, first, value, std::min(kValueBlock, h.value_dim - value), shared);
    }
  }
}

}  // namespace
}  // namespace convoy::cpu
