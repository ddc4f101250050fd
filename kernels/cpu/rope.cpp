#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {

void CpuOpSet::rope(Stream& /*stream*/, const RopeArgs& args) {
  cpu::check_step(args.step);
  CONVOY_CHECK_OP(args.rotary_dim, >, 0);
  CONVOY_CHECK_OP(args.rotary_dim % 2, ==, 0);
  CONVOY_CHECK_OP(args.rotary_dim, <=, 256);
  const int64_t column_ns = args.rotary_dim * 10 + args.heads * args.rotary_dim / 4;
  pool_.parallel_for(
      args.step.columns(), cpu::grain_for(column_ns),
      [&](int64_t begin, int64_t end, int) { kernels_.rope_columns(args, begin, end); });
}

}  // namespace convoy
