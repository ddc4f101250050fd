#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {

void cpu::check_step(const StepView& step) {
  CONVOY_CHECK(step.control != nullptr, "a step without control rows");
  CONVOY_CHECK_OP(step.lanes, >, 0);
  CONVOY_CHECK_OP(step.lanes, <=, kMaxLanes);
  CONVOY_CHECK_OP(step.width, >, 0);
}

void CpuOpSet::embedding(Stream& /*stream*/, const EmbeddingArgs& args) {
  CONVOY_CHECK_OP(args.hidden, >, 0);
  CONVOY_CHECK(args.table != nullptr || args.packed.data != nullptr,
               "an embedding without a table");
  if (args.table == nullptr) CONVOY_CHECK_OP(args.packed.in_features, ==, args.hidden);
  pool_.parallel_for(
      args.rows, cpu::grain_for(args.hidden / 2),
      [&](int64_t begin, int64_t end, int) { kernels_.embed_rows(args, begin, end); });
}

void CpuOpSet::swiglu(Stream& /*stream*/, const SwigluArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  pool_.parallel_for(
      args.rows, cpu::grain_for(args.size / 2),
      [&](int64_t begin, int64_t end, int) { kernels_.swiglu_rows(args, begin, end); });
}

void CpuOpSet::gdn_gates(Stream& /*stream*/, const GdnGatesArgs& args) {
  CONVOY_CHECK_OP(args.value_heads, >, 0);
  pool_.parallel_for(
      args.rows, cpu::grain_for(args.value_heads * 20),
      [&](int64_t begin, int64_t end, int) { kernels_.gdn_gate_rows(args, begin, end); });
}

}  // namespace convoy
