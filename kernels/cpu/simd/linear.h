// The packed linear layer: panels of 64 outputs, tiles of a few rows held in registers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

constexpr int kPanel = 64;
// 128 KiB of a panel: stays in the second-level cache while all row tiles pass over it.
constexpr int kLinearDepthBlock = 1024;
// Rows whose partial sums are kept between two depth blocks.
constexpr int kLinearRowBlock = 96;
// How far ahead of the sums weights are asked for, in k (two cache lines each).
constexpr int kLinearPrefetch = 24;

// R rows x V vectors (V even) of the panel `w`, over `depth` values of k. `partial` ([row][64],
// even and odd outputs apart) holds the sums so far.
template <int R, int V>
inline void linear_tile(const float* x, ptrdiff_t x_stride, const uint16_t* w, int depth,
                        bool first, float* partial) {
  Vec acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      acc[r][v] = first ? zero() : load(partial + r * kPanel + v * kLanes);
  }
  for (int k = 0; k < depth; ++k) {
    Vec weights[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v += 2) load_bf16_pair(w + v * kLanes, weights[v], weights[v + 1]);
    __builtin_prefetch(w + kLinearPrefetch * kPanel);
    __builtin_prefetch(w + kLinearPrefetch * kPanel + kPanel / 2);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec value = set1(x[r * x_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] = fma(value, weights[v], acc[r][v]);
    }
    w += kPanel;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(partial + r * kPanel + v * kLanes, acc[r][v]);
  }
}

template <int R = kTileRows>
CONVOY_SIMD void linear_rows(int rows, const float* x, ptrdiff_t x_stride, const uint16_t* w,
                             int depth, bool first, float* partial) {
  if constexpr (R == 1) {
    linear_tile<1, kPanel / kLanes>(x, x_stride, w, depth, first, partial);
  } else if (rows == R) {
    for (int strip = 0; strip < kPanel; strip += kTileVectors * kLanes) {
      linear_tile<R, kTileVectors>(x, x_stride, w + strip, depth, first, partial + strip);
    }
  } else {
    linear_rows<R - 1>(rows, x, x_stride, w, depth, first, partial);
  }
}

inline void finish_panel(const LinearArgs& args, int panel, int row, const float* partial) {
  float* out = static_cast<float*>(args.out) + row * args.out_row_stride + panel * kPanel;
  const int outputs = std::min(kPanel, args.weight.out_features - panel * kPanel);
  for (int n = 0; n < outputs; n += 2 * kLanes) {
    Vec halves[2];
    interleave(load(partial + n), load(partial + n + kLanes), halves[0], halves[1]);
    for (int h = 0; h < 2; ++h) {
      const int left = outputs - n - h * kLanes;
      if (left <= 0) break;
      float* to = out + n + h * kLanes;
      const Vec sum = args.accumulate ? add(load_first(to, left), halves[h]) : halves[h];
      store_first(to, sum, left);
    }
  }
}

void linear_panels(const LinearArgs& args, int panel_begin, int panel_end) {
  alignas(64) float partial[kLinearRowBlock * kPanel];
  const int depth = args.weight.in_features;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const uint16_t* weights =
        args.weight.data + static_cast<size_t>(panel) * static_cast<size_t>(depth) * kPanel;
    for (int row0 = 0; row0 < args.rows; row0 += kLinearRowBlock) {
      const int rows = std::min(kLinearRowBlock, args.rows - row0);
      for (int k = 0; k < depth; k += kLinearDepthBlock) {
        const int block = std::min(kLinearDepthBlock, depth - k);
        for (int row = 0; row < rows;) {
          // Tiles of nearly equal height: 7 rows are 4 + 3, not 6 + 1.
          const int tiles = (rows - row + kTileRows - 1) / kTileRows;
          const int height = (rows - row + tiles - 1) / tiles;
          linear_rows(height,
                      static_cast<const float*>(args.x) + (row0 + row) * args.x_row_stride + k,
                      args.x_row_stride, weights + static_cast<size_t>(k) * kPanel, block, k == 0,
                      partial + row * kPanel);
          row += height;
        }
      }
      for (int row = 0; row < rows; ++row)
        finish_panel(args, panel, row0 + row, partial + row * kPanel);
    }
  }
}

}  // namespace
}  // namespace convoy::cpu
