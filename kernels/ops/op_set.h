// The operations that stages are made of, and their contracts. One object per device implements all
// of them.
//
// Every operation is asynchronous on `stream`, takes plain device pointers, never allocates and
// never fails: shapes are checked by CONVOY_CHECK. Shapes are written [rows, columns], fastest axis
// last, densely packed unless a stride is named. Activations (`void*` here, strides in values) are
// f32 on CPU devices and bf16 on CUDA devices, rounded to nearest even when they are stored; sums
// are f32 on both. Weights are bf16, norms, GDN parameters and GDN state f32. Outputs never overlap
// inputs unless the contract says so.
//
// Determinism: a row (column of the step) depends on its own inputs and on its position class only,
// in an order fixed by shapes and absolute positions: never on the number of rows, lanes or
// threads, nor on the number of multiprocessors, and never on where a prompt was cut into chunks
// of whole pages.
//
// Formulas: Qwen3.5 (Hugging Face transformers, modeling_qwen3_5.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/ops/draw_rule.h"
#include "kernels/ops/kv_dtype.h"
#include "kernels/ops/step.h"

namespace convoy {

/// A bf16 weight [out_features, in_features] in the layout the device computes with (pack_linear
/// makes it). CPU: panels of 64 outputs, [ceil(out/64)][in][64], the last panel padded with zeros.
/// CUDA: row-major, 256-byte aligned.
struct LinearWeight {
  const uint16_t* data = nullptr;
  int out_features = 0;
  int in_features = 0;
};

/// out[r, :] = table[ids[r], :], exactly.
struct EmbeddingArgs {
  const int32_t* ids = nullptr;  ///< [rows], each in 0..vocab-1 (the caller checked)
  int rows = 0;
  int hidden = 0;
  const uint16_t* table =
      nullptr;  ///< [vocab, hidden] bf16 row-major; null: gather from `packed` (tied head)
  LinearWeight packed;
  void* out = nullptr;  ///< [rows, hidden]
};

/// y = x * rsqrt(mean(x^2) + eps) * (w + offset); offset is 1 for zero-centred weights, else 0.
/// Rows may be strided (a head inside a wider row): row (r, g) starts at x + r*x_row_stride +
/// g*x_group_stride. In place (out == x with equal strides) is allowed. CPU: the sum runs in 16
/// interleaved partial sums, added pairwise.
struct RmsNormArgs {
  const void* x = nullptr;
  void* out = nullptr;
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
  const void* o = nullptr;
  const void* z = nullptr;
  ptrdiff_t z_row_stride = 0;
  void* out = nullptr;
  const float* weight = nullptr;  ///< [size]
  int rows = 0;
  int heads = 0;
  int size = 0;
  float eps = 1e-6F;
};

/// out[r, n] = (accumulate ? out[r, n] : 0) + sum_k x[r, k] * W[n, k].
/// The sum is rounded once, after the addition to `out` when accumulating.
///
/// CPU: sequential fused multiply-adds over k from zero, whatever the class. Work is split over n
/// only. AVX-512, AVX2 and scalar code give the same bits.
/// CUDA: the class picks the kernels, and within one the order over k is fixed by (in_features,
/// out_features). `generated` runs passes of up to 64 rows; `prompt` may read and write `x` and
/// `out` (with its row stride) up to padded_rows.
struct LinearArgs {
  const void* x = nullptr;  ///< [rows, in_features], row stride x_row_stride
  ptrdiff_t x_row_stride = 0;
  LinearWeight weight;
  void* out = nullptr;  ///< [rows, out_features], row stride out_row_stride
  ptrdiff_t out_row_stride = 0;
  int rows = 0;
  bool accumulate = false;
  PositionClass position_class = PositionClass::prompt;
  bool f32_out = false;  ///< `out` is f32 whatever the device (logits); not with accumulate
  int padded_rows = 0;   ///< rows that x and out have memory for, whatever is in them; 0: `rows`
};

/// Multimodal rotary embedding on the first `rotary_dim` values of every head, in place, half-split
/// pairs (i, i + rotary_dim/2): angle_i = rope_position[axis[i]] * inv_freq[i]; cos and sin in f32.
/// Dead columns are left alone.
struct RopeArgs {
  StepView step;
  void* x = nullptr;  ///< head h of column c starts at x + c*column_stride + h*head_stride
  ptrdiff_t column_stride = 0, head_stride = 0;
  int heads = 0;
  int rotary_dim = 0;
  const float* inv_freq = nullptr;  ///< [rotary_dim/2]
  const int32_t* axis = nullptr;    ///< [rotary_dim/2], 0 time, 1 height, 2 width
};

/// One attention layer's part of the paged cache. A plane is [pages, kv_heads] blocks, 16-byte
/// aligned, each one page of one KV head:
///
///   f32, bf16   values [64, head_dim]
///   int8        q [64, head_dim], then fp16 scales [64, ceil(head_dim / 64)]: one per token and
///               group of up to 64 values
///   fp8         e4m3 [64, head_dim]
///
/// CPU devices have f32 and int8, CUDA devices bf16, int8 and fp8. A token's bytes depend on its
/// own values alone, rounded to nearest even throughout:
///
///   int8   scale = max |x| / 127 of the group in f32, then fp16, at most 65504; q = x / scale in
///          f32, rounded, in -127..127; 0 where the scale is 0. NaN counts as 0.
///   fp8    at most 448 in magnitude; NaN stays NaN.
///
/// Attention reads q * scale, exact in f32; CUDA rounds it to bf16, which holds every e4m3 exactly.
struct KvPlanes {
  void* k = nullptr;
  void* v = nullptr;
  const int32_t* block_tables =
      nullptr;  ///< [rows, max_pages_per_row]: page id of block b of row r
  int max_pages_per_row = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvDtype dtype = KvDtype::f32;
};

/// Stores k (after norm and rotation) and v (raw) of every live column at its cache position, as
/// the planes' dtype says.
struct KvWriteArgs {
  StepView step;
  const void* k = nullptr;  ///< [columns, kv_heads * head_dim], column stride k_column_stride
  const void* v = nullptr;
  ptrdiff_t k_column_stride = 0, v_column_stride = 0;
  KvPlanes cache;
};

/// out = softmax(q k^T * head_dim^-0.5, causal) v * sigmoid(gate), reading positions
/// 0..cache_position of the column's sequence as stored (its own chunk included: kv_write comes
/// first), whatever the dtype; what lies in pages beyond the lane's last token changes nothing.
/// Query head h reads KV head h / (heads / kv_heads). One online-softmax step per page from
/// position 0 (CUDA, generated class: splits at fixed positions, kernels/ops/scratch.h, combined in
/// a fixed order), so the bits depend on positions and class only. Dead columns give zeros. gate
/// may be null (no gate). CUDA: q, gate, out and the planes are 16-byte aligned, strides multiples
/// of 8, head_dim at most 256.
struct PagedAttentionArgs {
  StepView step;
  const void* q = nullptr;  ///< head h of column c at q + c*q_column_stride + h*q_head_stride
  const void* gate = nullptr;
  ptrdiff_t q_column_stride = 0, q_head_stride = 0;
  ptrdiff_t gate_column_stride = 0, gate_head_stride = 0;
  int heads = 0;
  KvPlanes cache;
  void* out = nullptr;      ///< [columns, heads * head_dim]
  void* scratch = nullptr;  ///< attention_scratch_bytes() of kernels/ops/scratch.h; CPU: none
};

/// Query and key norms (zero-centred), rotation and kv_write of one layer in one go, on the fused
/// projection. Row of a column: [heads, 2, head_dim] queries and gates | [kv_heads, head_dim] keys
/// | [kv_heads, head_dim] values. Queries of live columns are normalised and rotated in place; keys
/// and values may be left as they were or not. The default runs rms_norm, rope and kv_write; CUDA
/// quantises keys without rounding them to bf16 before.
struct AttentionInputsArgs {
  StepView step;
  void* qkv = nullptr;
  ptrdiff_t column_stride = 0;
  int heads = 0;
  const float* q_norm = nullptr;  ///< [head_dim]
  const float* k_norm = nullptr;  ///< [head_dim]
  float eps = 1e-6F;
  int rotary_dim = 0;
  const float* inv_freq = nullptr;
  const int32_t* axis = nullptr;
  KvPlanes cache;
};

/// Depthwise causal convolution, 4 taps, and SiLU: out_t[c] = silu(sum_j w[c, j] * u_{t-3+j}[c]); u
/// before the sequence's start is 0. Reads the last three raw inputs from the lane's source slot
/// and writes the new last three to its destination slot (oldest first). A lane with no live column
/// leaves its slots alone. Dead columns give zeros.
struct CausalConvArgs {
  StepView step;
  const void* u = nullptr;  ///< [columns, channels], column stride u_column_stride
  ptrdiff_t u_column_stride = 0;
  const float* weight = nullptr;  ///< [channels, 4]
  float* state = nullptr;         ///< [slots, 3, channels]
  int channels = 0;
  void* out = nullptr;  ///< [columns, channels]
};

/// g = -exp(a_log) * softplus(a + dt_bias); beta = sigmoid(b). All [columns, value_heads] (a and b
/// with strides).
struct GdnGatesArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  ptrdiff_t a_row_stride = 0, b_row_stride = 0;
  const float* a_log = nullptr;    ///< [value_heads]
  const float* dt_bias = nullptr;  ///< [value_heads]
  int rows = 0;
  int value_heads = 0;
  float* g = nullptr;
  float* beta = nullptr;
};

/// Gated delta rule. qkv: [columns, 2*key_heads*key_dim + value_heads*value_dim] (convolved, in the
/// order q | k | v). q and k of every key head are first scaled to unit length (in place or not): x
/// * rsqrt(sum(x^2) + 1e-6), q also by key_dim^-0.5. Value head j reads key head j / (value_heads /
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
  void* qkv = nullptr;
  const float* g = nullptr;     ///< [columns, value_heads]
  const float* beta = nullptr;  ///< [columns, value_heads]
  float* state = nullptr;       ///< [slots, value_heads, key_dim, value_dim]
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  void* out = nullptr;      ///< [columns, value_heads * value_dim]
  void* scratch = nullptr;  ///< gdn_scratch_bytes() of kernels/ops/scratch.h; CPU: none
};

/// A whole GDN mixer of generated positions in one go: causal_conv, gdn_gates, gdn_recurrent and
/// gated_rms_norm on the fused projection. Row of a column: u (q | k | v before the convolution) |
/// z | b | a. What lies between the four is not rounded where the device keeps it to itself, so the
/// bits may differ from theirs. The default runs the four.
///
/// CUDA reads control rows and the lanes' source slots before the kernels ahead of it in the stream
/// are done: a copy (or the start of a graph) must lie between this and the kernel that wrote them.
struct GdnGenerateArgs {
  StepView step;
  const void* projection = nullptr;
  ptrdiff_t column_stride = 0;
  const float* conv_weight = nullptr;  ///< [channels, 4]
  float* conv_state = nullptr;         ///< [slots, 3, channels]
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;  ///< [value_dim]
  float eps = 1e-6F;
  float* state = nullptr;
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  void* mixed = nullptr;   ///< scratch: activations [columns, channels]
  float* gates = nullptr;  ///< scratch: [2, columns, value_heads]
  void* out = nullptr;     ///< [columns, value_heads * value_dim]
};

/// out[r, i] = silu(gate_up[r, i]) * gate_up[r, size + i]; gate_up: [rows, 2 * size].
struct SwigluArgs {
  const void* gate_up = nullptr;
  void* out = nullptr;  ///< [rows, size]
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

/// drawn[row] = the id that rules[row] draws of valid logits, -1 where every one is masked;
/// ids[row] likewise, but untouched there. `ids` comes from argmax over the same logits, whose
/// choice stands for greedy rules. The same ids on every device: kernels/draw/token_draw.h.
struct SampleArgs {
  const float* logits = nullptr;  ///< [rows, row_stride]
  ptrdiff_t row_stride = 0;
  int rows = 0;
  int valid = 0;                    ///< at most 2^23
  const DrawRule* rules = nullptr;  ///< [rows]
  int32_t* ids = nullptr;           ///< [rows]
  int32_t* drawn = nullptr;         ///< [rows]
};

/// out[i] = value first + i of the random sequence `seed` (kernels/ops/random_values.h): uniform in
/// centre ± spread, the same bits on every device. For weights that stand in for a checkpoint's.
struct FillRandomArgs {
  void* out = nullptr;  ///< [count] bf16 row-major, or f32
  int64_t count = 0;
  bool f32_out = false;
  uint64_t seed = 0;
  uint64_t first = 0;  ///< a multiple of 4
  float centre = 0;
  float spread = 1;
};

/// Block-table entries that a step changes before anything else: tables[kv_row][block] = page.
struct BlockTableArgs {
  const BlockTableDelta* deltas = nullptr;  ///< [count], device or registered host memory
  int count = 0;
  int32_t* tables = nullptr;  ///< [rows, max_pages_per_row]
  int max_pages_per_row = 0;
};

/// What has to be ready before streams may block on other processes: every kernel loaded, every
/// matrix product of these shapes chosen, checked and run once.
struct WarmUpShape {
  int out_features = 0;
  int in_features = 0;
  bool prompts = true;  ///< whether prompt positions run it too; a head serves generated ones only
  int rows = 0;         ///< columns of the longest prompt chunk, if known
};

/// `values` activations after `base`.
inline void* activations_at(void* base, ptrdiff_t values, size_t activation_bytes) {
  return static_cast<std::byte*>(base) + values * static_cast<ptrdiff_t>(activation_bytes);
}
inline const void* activations_at(const void* base, ptrdiff_t values, size_t activation_bytes) {
  return static_cast<const std::byte*>(base) + values * static_cast<ptrdiff_t>(activation_bytes);
}

class OpSet {
 public:
  virtual ~OpSet() = default;

  /// Bytes of one activation: 4 on CPU devices, 2 on CUDA devices.
  virtual size_t activation_bytes() const = 0;

  /// Bytes of the packed form of a [out_features, in_features] weight.
  virtual size_t packed_linear_bytes(int out_features, int in_features) const = 0;
  /// Packs `rows` rows of a row-major bf16 weight (host memory, [rows, in_features], any alignment)
  /// as rows first_row.. of `destination`, a packed weight of out_features rows in total. Rows of
  /// one weight may come in several calls (fused projections). Done when it returns; `source` may
  /// go then.
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
  virtual void sample(Stream& stream, const SampleArgs& args) = 0;
  virtual void update_block_tables(Stream& stream, const BlockTableArgs& args) = 0;
  virtual void fill_random(Stream& stream, const FillRandomArgs& args) = 0;

  virtual void attention_inputs(Stream& stream, const AttentionInputsArgs& args);
  virtual void gdn_generate(Stream& stream, const GdnGenerateArgs& args);

  /// Before links open. Throws StartError when a product's bits depend on the number of rows.
  virtual void warm_up(Stream& stream, const WarmUpShape* shapes, int count) {
    (void)stream, (void)shapes, (void)count;
  }
};

}  // namespace convoy
