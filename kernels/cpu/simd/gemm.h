// c = (row_scale * c or zero) + a b on f32 matrices, the inner loop of attention and of the chunked
// delta rule. Every element is a sequential fused multiply-add over the depth, so its bits depend
// on nothing but its own inputs.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd/vector.h"

namespace convoy::cpu {
namespace {

struct Gemm {
  int rows = 0;
  int columns = 0;  ///< a multiple of 16
  int depth = 0;
  const float* a = nullptr;  ///< [rows, depth]
  ptrdiff_t a_stride = 0;
  const float* b = nullptr;  ///< [depth, columns]
  ptrdiff_t b_stride = 0;
  float* c = nullptr;  ///< [rows, columns]
  ptrdiff_t c_stride = 0;
  const float* row_scale = nullptr;  ///< [rows]; null: c starts from zero
};

template <int R, int V>
inline void gemm_tile(const Gemm& g, int row, int column) {
  Vec acc[R][V];
  float* c = g.c + row * g.c_stride + column;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      acc[r][v] = g.row_scale == nullptr
                      ? zero()
                      : mul(load(c + r * g.c_stride + v * kLanes), set1(g.row_scale[row + r]));
    }
  }
  const float* a = g.a + row * g.a_stride;
  const float* b = g.b + column;
  for (int k = 0; k < g.depth; ++k) {
    Vec weights[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) weights[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = set1(a[r * g.a_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] = fma(x, weights[v], acc[r][v]);
    }
    b += g.b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(c + r * g.c_stride + v * kLanes, acc[r][v]);
  }
}

template <int V, int R = kTileRows>
CONVOY_SIMD void gemm_rows(const Gemm& g, int row, int rows, int column) {
  if constexpr (R == 0) {
    return;
  } else if (rows == R) {
    gemm_tile<R, V>(g, row, column);
  } else {
    gemm_rows<V, R - 1>(g, row, rows, column);
  }
}

inline void gemm(const Gemm& g) {
  for (int column = 0; column < g.columns;) {
    const bool full = g.columns - column >= kTileVectors * kLanes;
    for (int row = 0; row < g.rows; row += kTileRows) {
      const int rows = g.rows - row < kTileRows ? g.rows - row : kTileRows;
      if (full) {
        gemm_rows<kTileVectors>(g, row, rows, column);
      } else {
        gemm_rows<1>(g, row, rows, column);
      }
    }
    column += full ? kTileVectors * kLanes : kLanes;
  }
}

}  // namespace
}  // namespace convoy::cpu
