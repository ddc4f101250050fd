// The operations of a CUDA device. Each .cu beside this header holds a few of them: the launcher,
// which checks shapes, right under its kernels.
//
// Kernels are launched with programmatic dependent launch (launch.cuh): each begins while the one
// before it drains, and waits for its results with grid_dependency_wait() before it reads or writes
// anything that an earlier kernel may have written.
#pragma once

#include <memory>

#include "kernels/ops/op_set.h"

namespace convoy {

class CudaMatmul;

class CudaOpSet final : public OpSet {
 public:
  CudaOpSet();
  ~CudaOpSet() override;

  size_t activation_bytes() const override { return 2; }
  size_t packed_linear_bytes(int out_features, int in_features) const override;
  void pack_linear(const void* source, int rows, int first_row, int out_features, int in_features,
                   void* destination) override;

  void embedding(Stream& stream, const EmbeddingArgs& args) override;
  void rms_norm(Stream& stream, const RmsNormArgs& args) override;
  void gated_rms_norm(Stream& stream, const GatedRmsNormArgs& args) override;
  void linear(Stream& stream, const LinearArgs& args) override;
  void rope(Stream& stream, const RopeArgs& args) override;
  void kv_write(Stream& stream, const KvWriteArgs& args) override;
  void paged_attention(Stream& stream, const PagedAttentionArgs& args) override;
  void causal_conv(Stream& stream, const CausalConvArgs& args) override;
  void gdn_gates(Stream& stream, const GdnGatesArgs& args) override;
  void gdn_recurrent(Stream& stream, const GdnArgs& args) override;
  void gdn_chunk(Stream& stream, const GdnArgs& args) override;
  void swiglu(Stream& stream, const SwigluArgs& args) override;
  void argmax(Stream& stream, const ArgmaxArgs& args) override;
  void sample(Stream& stream, const SampleArgs& args) override;
  void update_block_tables(Stream& stream, const BlockTableArgs& args) override;
  void fill_random(Stream& stream, const FillRandomArgs& args) override;

  void attention_inputs(Stream& stream, const AttentionInputsArgs& args) override;
  void gdn_generate(Stream& stream, const GdnGenerateArgs& args) override;

  void warm_up(Stream& stream, const WarmUpShape* shapes, int count) override;

 private:
  std::unique_ptr<CudaMatmul> matmul_;  // cuBLASLt, opened when a prompt's product first needs it
};

}  // namespace convoy
