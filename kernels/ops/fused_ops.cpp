// Fused operations as their parts, for devices that gain nothing by fusing.
#include "kernels/ops/op_set.h"

namespace convoy {

void OpSet::attention_inputs(Stream& stream, const AttentionInputsArgs& args) {
  const size_t bytes = activation_bytes();
  const ptrdiff_t dim = args.cache.head_dim;
  void* const k = activations_at(args.qkv, 2 * dim * args.heads, bytes);
  void* const v = activations_at(k, dim * args.cache.kv_heads, bytes);
  const auto norm_and_rotate = [&](void* x, int heads, ptrdiff_t head_stride, const float* weight) {
    rms_norm(stream, {.x = x,
                      .out = x,
                      .weight = weight,
                      .rows = args.step.columns(),
                      .groups = heads,
                      .size = args.cache.head_dim,
                      .x_row_stride = args.column_stride,
                      .x_group_stride = head_stride,
                      .out_row_stride = args.column_stride,
                      .out_group_stride = head_stride,
                      .eps = args.eps});
    rope(stream, {.step = args.step,
                  .x = x,
                  .column_stride = args.column_stride,
                  .head_stride = head_stride,
                  .heads = heads,
                  .rotary_dim = args.rotary_dim,
                  .inv_freq = args.inv_freq,
                  .axis = args.axis});
  };
  norm_and_rotate(args.qkv, args.heads, 2 * dim, args.q_norm);
  norm_and_rotate(k, args.cache.kv_heads, dim, args.k_norm);
  kv_write(stream, {.step = args.step,
                    .k = k,
                    .v = v,
                    .k_column_stride = args.column_stride,
                    .v_column_stride = args.column_stride,
                    .cache = args.cache});
}

void OpSet::gdn_generate(Stream& stream, const GdnGenerateArgs& args) {
  const size_t bytes = activation_bytes();
  const int columns = args.step.columns();
  const int value_size = args.value_heads * args.value_dim;
  const int channels = 2 * args.key_heads * args.key_dim + value_size;
  const void* const z = activations_at(args.projection, channels, bytes);
  const void* const b = activations_at(z, value_size, bytes);
  const void* const a = activations_at(b, args.value_heads, bytes);
  float* const g = args.gates;
  float* const beta = g + ptrdiff_t{columns} * args.value_heads;
  causal_conv(stream, {.step = args.step,
                       .u = args.projection,
                       .u_column_stride = args.column_stride,
                       .weight = args.conv_weight,
                       .state = args.conv_state,
                       .channels = channels,
                       .out = args.mixed});
  gdn_gates(stream, {.a = a,
                     .b = b,
                     .a_row_stride = args.column_stride,
                     .b_row_stride = args.column_stride,
                     .a_log = args.a_log,
                     .dt_bias = args.dt_bias,
                     .rows = columns,
                     .value_heads = args.value_heads,
                     .g = g,
                     .beta = beta});
  gdn_recurrent(stream, {.step = args.step,
                         .qkv = args.mixed,
                         .g = g,
                         .beta = beta,
                         .state = args.state,
                         .key_heads = args.key_heads,
                         .value_heads = args.value_heads,
                         .key_dim = args.key_dim,
                         .value_dim = args.value_dim,
                         .out = args.out});
  gated_rms_norm(stream, {.o = args.out,
                          .z = z,
                          .z_row_stride = args.column_stride,
                          .out = args.out,
                          .weight = args.norm,
                          .rows = columns,
                          .heads = args.value_heads,
                          .size = args.value_dim,
                          .eps = args.eps});
}

}  // namespace convoy
