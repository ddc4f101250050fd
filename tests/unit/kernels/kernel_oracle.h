// What the operations should compute, in double precision and as plainly as the formulas read.
// Inputs are the rounded values that the operation gets. Independent of kernels/ on purpose: shapes
// and formulas are written anew.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace convoy::test {

using Doubles = std::vector<double>;

inline double oracle_sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
inline double oracle_silu(double x) {
  return x * oracle_sigmoid(x);
}

/// x [size] * rsqrt(mean + eps) * (weight + offset)
inline Doubles oracle_rms_norm(const float* x, const float* weight, int size, double eps,
                               double offset) {
  double squares = 0;
  for (int i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  Doubles y;
  for (int i = 0; i < size; ++i)
    y.push_back(x[i] / std::sqrt(squares / size + eps) * (weight[i] + offset));
  return y;
}

/// The attention of one query over `count` keys and values, each `dim` values, `stride` apart.
inline Doubles oracle_attention(const float* q, const float* keys, const float* values, int count,
                                int stride, int dim) {
  Doubles weights;
  double largest = -1e300;
  for (int t = 0; t < count; ++t) {
    double dot = 0;
    for (int d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * keys[t * stride + d];
    weights.push_back(dot / std::sqrt(static_cast<double>(dim)));
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  Doubles out(static_cast<size_t>(dim), 0.0);
  for (int t = 0; t < count; ++t) {
    for (int d = 0; d < dim; ++d)
      out[static_cast<size_t>(d)] += weights[static_cast<size_t>(t)] / sum * values[t * stride + d];
  }
  return out;
}

/// x scaled to unit length, times `factor`.
inline Doubles oracle_unit(const float* x, int size, double factor) {
  double squares = 0;
  for (int i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  Doubles y;
  for (int i = 0; i < size; ++i) y.push_back(x[i] / std::sqrt(squares + 1e-6) * factor);
  return y;
}

/// One token of the gated delta rule for one head; state [key_dim][value_dim] is updated. Returns o
/// [value_dim].
inline Doubles oracle_delta_rule(const Doubles& q, const Doubles& k, const float* v, double g,
                                 double beta, int value_dim, Doubles& state) {
  // Rows of the state outside, so that memory is read in its order: these loops are most of the
  // time of the tests.
  const auto width = static_cast<size_t>(value_dim);
  const double decay = std::exp(g);
  Doubles delta(v, v + width), o(width, 0.0);
  for (size_t d = 0; d < k.size(); ++d) {
    for (size_t j = 0; j < width; ++j) {
      double& s = state[d * width + j];
      s *= decay;
      delta[j] -= k[d] * s;
    }
  }
  for (size_t d = 0; d < k.size(); ++d) {
    for (size_t j = 0; j < width; ++j) {
      double& s = state[d * width + j];
      s += k[d] * beta * delta[j];
      o[j] += q[d] * s;
    }
  }
  return o;
}

}  // namespace convoy::test
