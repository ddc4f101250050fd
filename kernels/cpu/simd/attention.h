// Paged attention for a few (column, head) rows of one lane and KV head: one online-softmax step
// per page.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd/activation.h"
#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/kv_int8.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

constexpr int kMaxHeadDim = 512;

// Rows in ascending position, so that those which still read a page are always the last ones.
struct AttentionRows {
  int count = 0;
  int head_dim = 0;
  int32_t position[kAttentionRows];
  const float* q[kAttentionRows];
  float maximum[kAttentionRows];
  float sum[kAttentionRows];
  float rescale[kAttentionRows];
  alignas(64) float scores[kAttentionRows][kPageTokens];
  alignas(64) float out[kAttentionRows][kMaxHeadDim];
};

// Scores of Q rows with the first `tokens` keys of a page (rounded up to whole tiles). The first
// rows that look at a page
// (`fetch`) also ask for what comes next, the following keys and the values: their rows are too
// short for the processor to see a stream.
template <int Q, bool fetch>
inline void score_rows(AttentionRows& rows, int row, const float* keys, const float* values,
                       int tokens) {
  constexpr int kTokens = kTileSums / Q;
  const ptrdiff_t dim = rows.head_dim;
  for (int t = 0; t < tokens; t += kTokens) {
    Vec acc[kTileSums];
#pragma GCC unroll 16
    for (int i = 0; i < kTileSums; ++i) acc[i] = zero();
    const float* key = keys + t * dim;
    for (int d = 0; d < dim; d += kLanes) {
      Vec query[Q];
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) query[i] = load(rows.q[row + i] + d);
#pragma GCC unroll 16
      for (int j = 0; j < kTokens; ++j) {
        const Vec value = load(key + j * dim + d);
        if constexpr (fetch) {
          __builtin_prefetch(key + (kTokens + j) * dim + d);
          __builtin_prefetch(values + (t + j) * dim + d);
        }
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          Vec& sum = acc[sum_slot(i * kTokens + j)];
          sum = fma(query[i], value, sum);
        }
      }
    }
    float sums[kTileSums];
    store_sums(acc, sums);
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
      std::memcpy(&rows.scores[row + i][t], sums + i * kTokens, sizeof(float) * kTokens);
  }
}

// Turns scores of the first `tokens` keys into weights (0 beyond) and updates maximum, sum and
// rescale.
inline void softmax_step(AttentionRows& rows, int row, int tokens, float scale) {
  float* scores = rows.scores[row];
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int t = tokens; t < kPageTokens; ++t) scores[t] = kLowest;
  Vec largest = set1(rows.maximum[row]);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const Vec scaled = mul(load(scores + t), set1(scale));
    store(scores + t, scaled);
    largest = max(largest, scaled);
  }
  const float maximum = max_lanes(largest);
  const float rescale = exp1(rows.maximum[row] - maximum);
  Vec total = zero();
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const Vec weight = exp(sub(load(scores + t), set1(maximum)));
    store(scores + t, weight);
    total = add(total, weight);
  }
  rows.maximum[row] = maximum;
  rows.rescale[row] = rescale;
  rows.sum[row] = __builtin_fmaf(rows.sum[row], rescale, sum_lanes(total));
}

inline void attend_page(AttentionRows& rows, int first_token, const float* keys,
                        const float* values, float scale) {
  const auto tokens_of = [&](int row) {
    return std::min(kPageTokens, rows.position[row] - first_token + 1);
  };
  int active = 0;
  while (active < rows.count && tokens_of(active) <= 0) ++active;
  for (int row = active; row < rows.count;) {
    const int left = rows.count - row;
    const int height = left >= 4 ? 4 : (left >= 2 ? 2 : 1);
    const int tokens = tokens_of(row + height - 1);
    if (height == 4) {
      row == active ? score_rows<4, true>(rows, row, keys, values, tokens)
                    : score_rows<4, false>(rows, row, keys, values, tokens);
    } else if (height == 2) {
      row == active ? score_rows<2, true>(rows, row, keys, values, tokens)
                    : score_rows<2, false>(rows, row, keys, values, tokens);
    } else {
      row == active ? score_rows<1, true>(rows, row, keys, values, tokens)
                    : score_rows<1, false>(rows, row, keys, values, tokens);
    }
    row += height;
  }
  for (int row = active; row < rows.count; ++row) softmax_step(rows, row, tokens_of(row), scale);
  // Keys that only the later rows may read are added row by row: a zero weight would still bring in
  // what lies there.
  const ptrdiff_t dim = rows.head_dim;
  const int common = tokens_of(active);
  const float one = 1.0F;
  gemm({rows.count - active, rows.head_dim, common, rows.scores[active], kPageTokens, values, dim,
        rows.out[active], kMaxHeadDim, rows.rescale + active});
  for (int row = active; row < rows.count; ++row) {
    const int extra = tokens_of(row) - common;
    if (extra == 0) continue;
    gemm({1, rows.head_dim, extra, rows.scores[row] + common, kPageTokens, values + common * dim,
          dim, rows.out[row], kMaxHeadDim, &one});
  }
}

// How a task sees pages: f32 where they lie ...
struct StoredPages {
  struct Page {
    const float* keys;
    const float* values;
  };
  Page read(const std::byte* k, const std::byte* v, int /*tokens*/, int /*head_dim*/) const {
    return {reinterpret_cast<const float*>(k), reinterpret_cast<const float*>(v)};
  }
};
// ... or int8, one after the other in tiles of its own.
struct Int8Pages {
  StoredPages::Page read(const std::byte* k, const std::byte* v, int tokens, int head_dim) {
    dequantise_int8(k, tokens, head_dim, keys);
    dequantise_int8(v, tokens, head_dim, values);
    return {keys, values};
  }
  alignas(64) float keys[kPageTokens * kMaxHeadDim];
  alignas(64) float values[kPageTokens * kMaxHeadDim];
};

template <typename Pages>
[[gnu::noinline]] void attend(const PagedAttentionArgs& args, const AttentionTask& task) {
  Pages pages;
  AttentionRows rows;
  rows.count = task.rows;
  rows.head_dim = args.cache.head_dim;
  const int group = args.heads / args.cache.kv_heads;
  const ptrdiff_t dim = args.cache.head_dim;
  const int lane_start = task.lane * args.step.width;
  const auto column_of = [&](int row) { return lane_start + (task.first_row + row) / group; };
  const auto head_of = [&](int row) {
    return task.kv_head * group + (task.first_row + row) % group;
  };
  for (int row = 0; row < rows.count; ++row) {
    rows.position[row] = args.step.control[column_of(row)].cache_position;
    rows.q[row] = static_cast<const float*>(args.q) + column_of(row) * args.q_column_stride +
                  head_of(row) * args.q_head_stride;
    rows.maximum[row] = -std::numeric_limits<float>::infinity();
    rows.sum[row] = 0.0F;
    for (int d = 0; d < dim; d += kLanes) store(rows.out[row] + d, zero());
  }

  const int32_t* table =
      args.cache.block_tables +
      static_cast<ptrdiff_t>(args.step.control[lane_start].kv_row) * args.cache.max_pages_per_row;
  const float scale = 1.0F / std::sqrt(static_cast<float>(args.cache.head_dim));
  const int last_position = rows.position[rows.count - 1];
  const auto block_bytes =
      static_cast<ptrdiff_t>(kv_block_bytes(args.cache.dtype, args.cache.head_dim));
  for (int page = 0; page <= last_position / kPageTokens; ++page) {
    const int first_token = page * kPageTokens;
    const ptrdiff_t at =
        (static_cast<ptrdiff_t>(table[page]) * args.cache.kv_heads + task.kv_head) * block_bytes;
    const auto [keys, values] =
        pages.read(static_cast<const std::byte*>(args.cache.k) + at,
                   static_cast<const std::byte*>(args.cache.v) + at,
                   std::min(kPageTokens, last_position - first_token + 1), args.cache.head_dim);
    attend_page(rows, first_token, keys, values, scale);
  }

  for (int row = 0; row < rows.count; ++row) {
    const ptrdiff_t column = column_of(row);
    const ptrdiff_t head = head_of(row);
    float* out = static_cast<float*>(args.out) + (column * args.heads + head) * dim;
    const Vec inverse = set1(1.0F / rows.sum[row]);
    const float* gate = args.gate == nullptr
                            ? nullptr
                            : static_cast<const float*>(args.gate) +
                                  column * args.gate_column_stride + head * args.gate_head_stride;
    for (int d = 0; d < dim; d += kLanes) {
      Vec value = mul(load(rows.out[row] + d), inverse);
      if (gate != nullptr) value = mul(value, sigmoid(load(gate + d)));
      store(out + d, value);
    }
  }
}

void attention_rows(const PagedAttentionArgs& args, const AttentionTask& task) {
  if (args.cache.dtype == KvDtype::int8) {
    attend<Int8Pages>(args, task);
  } else {
    attend<StoredPages>(args, task);
  }
}

}  // namespace
}  // namespace convoy::cpu
