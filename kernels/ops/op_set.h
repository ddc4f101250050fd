// The operations that stages are made of, and their contracts. One object per device implements all
// of them.
//
// Every operation is asynchronous on `stream`, takes plain device pointers, never allocates and
// never fails: shapes are checked by CONVOY_CHECK. Shapes are written [rows, columns], fastest axis
// last, densely packed unless a stride is named. Activations are f32 on CPU devices. Weights are
// bf16, norms and GDN parameters f32. Outputs never overlap inputs unless the contract says so.
//
// Determinism: a row (column of the step) depends on its own inputs only, in an order fixed by
// shapes and absolute positions: never on the number of rows, lanes or threads, and never on where
// a prompt was cut into chunks.
//
// Formulas: Qwen3.5 (Hugging Face transformers, modeling_qwen3_5.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/ops/step.h"

namespace convoy {

/// A bf16 weight [out_features, in_features] in the layout the device computes with (pack_linear
/// makes it). CPU: panels of 64 outputs, [ceil(out/64)][in][64], the last panel padded with zeros.
struct LinearWeight {
  const uint16_t* data = nullptr;
  int out_features = 0;
  int in_features = 0;
};

/// out[r, :] = table[ids[r], :], widened exactly to f32.
struct EmbeddingArgs {
  const int32_t* ids = nullptr;  ///< [rows], each in 0..vocab-1 (the caller checked)
  int rows = 0;
  int hidden = 0;
  const uint16_t* table =
      nullptr;  ///< [vocab, hidden] bf16 row-major; null: gather from `packed` (tied head)
  LinearWeight packed;
  float* out = nullptr;  ///< [rows, hidden]
};

/// y = x * rsqrt(mean(x^2) + eps) * (w + offset); offset is 1 for zero-centred weights, else 0.
/// Rows may be strided (a head inside a wider row): row (r, g) starts at x + r*x_row_stride +
/// g*x_group_stride. In place (out == x with equal strides) is allowed. The sum runs in 16
/// interleaved partial sums, added pairwise.
struct RmsNormArgs {
  const float* x = nullptr;
  float* out = nullptr;
  const float* weight = nullptr;  ///< [size]
  int rows = 0;
  int groups = 1;
  int size = 0;
  ptrdiff_t x_row_stride = 0, x_group_stride = 0;
  ptrdiff_t out_row_stride = 0, out_group_stride = 0;
  float eps = 1e-6F;
  bool zero_centred = true;
};

/// y = rms_norm(o, w) * silu(z) for each head of `size` values; weight plain. o, z, out: [rows,
/// heads * size]; z has its own row stride. In place on o is allowed.
struct GatedRmsNormArgs {
  const float* o = nullptr;
  const float* z = nullptr;
  ptrdiff_t z_row_stride = 0;
  float* out = nullptr;
  const float* weight = nullptr;  ///< [size]
  int rows = 0;
  int heads = 0;
  int size = 0;
  float eps = 1e-6F;
};

/// out[r, n] = (accumulate ? out[r, n] : 0) + sum_k x[r, k] * W[n, k].
/// The sum is sequential fused multiply-adds over k from zero, then one addition to `out` when
/// accumulating. Work is split over n only. AVX-512, AVX2 and scalar code give the same bits.
struct LinearArgs {
  const float* x = nullptr;  ///< [rows, in_features], row stride x_row_stride
  ptrdiff_t x_row_stride = 0;
  LinearWeight weight;
  float* out = nullptr;  ///< [rows, out_features], row stride out_row_stride
  ptrdiff_t out_row_stride = 0;
  int rows = 0;
  bool accumulate = false;
};

/// Multimodal rotary embedding on the first `rotary_dim` values of every head, in place, half-split
/// pairs (i, i + rotary_dim/2): angle_i = rope_position[axis[i]] * inv_freq[i]; cos and sin in f32.
/// Dead columns are left alone.
struct RopeArgs {
  StepView step;
  float* x = nullptr;  ///< head h of column c starts at x + c*column_stride + h*head_stride
  ptrdiff_t column_stride = 0, head_stride = 0;
  int heads = 0;
  int rotary_dim = 0;
  const float* inv_freq = nullptr;  ///< [rotary_dim/2]
  const int32_t* axis = nullptr;    ///< [rotary_dim/2], 0 time, 1 height, 2 width
};

/// One attention layer's part of the paged cache. A plane is [pages, kv_heads, 64, head_dim].
struct KvPlanes {
  void* k = nullptr;
  void* v = nullptr;
  const int32_t* block_tables =
      nullptr;  ///< [rows, max_pages_per_row]: page id of block b of row r
  int max_pages_per_row = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

/// Stores k (after norm and rotation) and v (raw) of every live column at its cache position.
struct KvWriteArgs {
  StepView step;
  const float* k = nullptr;  ///< [columns, kv_heads * head_dim], column stride k_column_stride
  const float* v = nullptr;
  ptrdiff_t k_column_stride = 0, v_column_stride = 0;
  KvPlanes cache;
};

/// out = softmax(q k^T * head_dim^-0.5, causal) v * sigmoid(gate), reading positions
/// 0..cache_position of the column's sequence as stored (its own included: kv_write comes first).
/// Query head h reads KV head h / (heads / kv_heads). One online-softmax step per page from
/// position 0, so the bits depend on positions only. Dead columns give zeros. gate may be null (no
/// gate).
struct PagedAttentionArgs {
  StepView step;
  const float* q = nullptr;  ///< head h of column c at q + c*q_column_stride + h*q_head_stride
  const float* gate = nullptr;
  ptrdiff_t q_column_stride = 0, q_head_stride = 0;
  ptrdiff_t gate_column_stride = 0, gate_head_stride = 0;
  int heads = 0;
  KvPlanes cache;
  float* out = nullptr;  ///< [columns, heads * head_dim]
};

/// Depthwise causal convolution, 4 taps, and SiLU: out_t[c] = silu(sum_j w[c, j] * u_{t-3+j}[c]); u
/// before the sequence's start is 0. Reads the last three raw inputs from the lane's source slot
/// and writes the new last three to its destination slot (oldest first). A lane with no live column
/// leaves its slots alone. Dead columns give zeros.
struct CausalConvArgs {
  StepView step;
  const float* u = nullptr;  ///< [columns, channels], column stride u_column_stride
  ptrdiff_t u_column_stride = 0;
  const float* weight = nullptr;  ///< [channels, 4]
  float* state = nullptr;         ///< [slots, 3, channels]
  int channels = 0;
  float* out = nullptr;  ///< [columns, channels]
};

/// g = -exp(a_log) * softplus(a + dt_bias); beta = sigmoid(b). All [columns, value_heads] (a and b
/// with strides).
struct GdnGatesArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  ptrdiff_t a_row_stride = 0, b_row_stride = 0;
  const float* a_log = nullptr;    ///< [value_heads]
  const float* dt_bias = nullptr;  ///< [value_heads]
  int rows = 0;
  int value_heads = 0;
  float* g = nullptr;
  float* beta = nullptr;
};

/// Gated delta rule. qkv: [columns, 2*key_heads*key_dim + value_heads*value_dim] (convolved, in the
/// order q | k | v). q and k of every key head are first scaled in place to unit length: x *
/// rsqrt(sum(x^2) + 1e-6), q also by key_dim^-0.5. Value head j reads key head j / (value_heads /
/// key_heads). Per column, state S [key_dim, value_dim] f32:
///   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q.
/// The lane's state is read from its source slot and written to its destination slot; lanes without
/// live columns leave both alone. Dead columns give zeros.
///
/// gdn_recurrent computes exactly this order (generated positions). gdn_chunk computes the chunked
/// form over absolute 64-token chunks (prompt positions): every lane's first cache_position must be
/// a multiple of 64.
struct GdnArgs {
  StepView step;
  float* qkv = nullptr;
  const float* g = nullptr;     ///< [columns, value_heads]
  const float* beta = nullptr;  ///< [columns, value_heads]
  float* state = nullptr;       ///< [slots, value_heads, key_dim, value_dim]
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  float* out = nullptr;  ///< [columns, value_heads * value_dim]
};

/// out[r, i] = silu(gate_up[r, i]) * gate_up[r, size + i]; gate_up: [rows, 2 * size].
struct SwigluArgs {
  const float* gate_up = nullptr;
  float* out = nullptr;  ///< [rows, size]
  int rows = 0;
  int size = 0;
};

/// ids[r] = the index of the largest logits[r, 0..valid-1]; the lowest index among equals. NaN is
/// never chosen unless all are.
struct ArgmaxArgs {
  const float* logits = nullptr;  ///< [rows, row_stride]
  ptrdiff_t row_stride = 0;
  int rows = 0;
  int valid = 0;
  int32_t* ids = nullptr;
};

class OpSet {
 public:
  virtual ~OpSet() = default;

  /// Bytes of the packed form of a [out_features, in_features] weight.
  virtual size_t packed_linear_bytes(int out_features, int in_features) const = 0;
  /// Packs `rows` rows of a row-major bf16 weight (host memory, [rows, in_features], any alignment)
  /// as rows first_row.. of `destination`, a packed weight of out_features rows in total. Rows of
  /// one weight may come in several calls (fused projections).
  virtual void pack_linear(const void* source, int rows, int first_row, int out_features,
                           int in_features, void* destination) = 0;

  virtual void embedding(Stream& stream, const EmbeddingArgs& args) = 0;
  virtual void rms_norm(Stream& stream, const RmsNormArgs& args) = 0;
  virtual void gated_rms_norm(Stream& stream, const GatedRmsNormArgs& args) = 0;
  virtual void linear(Stream& stream, const LinearArgs& args) = 0;
  virtual void rope(Stream& stream, const RopeArgs& args) = 0;
  virtual void kv_write(Stream& stream, const KvWriteArgs& args) = 0;
  virtual void paged_attention(Stream& stream, const PagedAttentionArgs& args) = 0;
  virtual void causal_conv(Stream& stream, const CausalConvArgs& args) = 0;
  virtual void gdn_gates(Stream& stream, const GdnGatesArgs& args) = 0;
  virtual void gdn_recurrent(Stream& stream, const GdnArgs& args) = 0;
  virtual void gdn_chunk(Stream& stream, const GdnArgs& args) = 0;
  virtual void swiglu(Stream& stream, const SwigluArgs& args) = 0;
  virtual void argmax(Stream& stream, const ArgmaxArgs& args) = 0;
};

}  // namespace convoy
