#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {

void CpuOpSet::rms_norm(Stream& /*stream*/, const RmsNormArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  CONVOY_CHECK_OP(args.groups, >, 0);
  pool_.parallel_for(
      static_cast<int64_t>(args.rows) * args.groups, cpu::grain_for(20 + args.size / 8),
      [&](int64_t begin, int64_t end, int) { kernels_.rms_norm_rows(args, begin, end); });
}

void CpuOpSet::gated_rms_norm(Stream& /*stream*/, const GatedRmsNormArgs& args) {
  CONVOY_CHECK_OP(args.size, >, 0);
  CONVOY_CHECK_OP(args.heads, >, 0);
  pool_.parallel_for(
      static_cast<int64_t>(args.rows) * args.heads, cpu::grain_for(20 + args.size / 2),
      [&](int64_t begin, int64_t end, int) { kernels_.gated_rms_norm_heads(args, begin, end); });
}

}  // namespace convoy
