// The operations of the CPU device. Each .cpp beside this header holds a few of them: it checks
// shapes and splits the work over the pool; the loops are in simd/. Where the work is cut never
// changes a bit of the result.
#pragma once

#include "kernels/cpu/simd/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/op_set.h"

namespace convoy {

class CpuOpSet final : public OpSet {
 public:
  /// Both outlive this object.
  CpuOpSet(ThreadPool& pool, const cpu::KernelTable& kernels) : pool_(pool), kernels_(kernels) {}

  size_t activation_bytes() const override { return sizeof(float); }
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

  const cpu::KernelTable& kernels() const { return kernels_; }

 private:
  void normalise_keys(const GdnArgs& args);

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
};

namespace cpu {

/// Work that is worth waking a thread for, in nanoseconds of one core.
inline constexpr int64_t kWorthAThreadNs = 20'000;

/// Items of `item_ns` nanoseconds each that make a range worth a thread.
constexpr int64_t grain_for(int64_t item_ns) {
  return 1 + kWorthAThreadNs / (item_ns > 0 ? item_ns : 1);
}

/// Checks what every operation on a step relies on.
void check_step(const StepView& step);

}  // namespace cpu
}  // namespace convoy
