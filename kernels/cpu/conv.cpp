#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {

void CpuOpSet::causal_conv(Stream& /*stream*/, const CausalConvArgs& args) {
  cpu::check_step(args.step);
  CONVOY_CHECK_OP(args.channels, >, 0);
  // Blocks of whole cache lines; every column of a block is in order, so lanes and channels are
  // what can be divided.
  constexpr int kBlock = 64;
  const int blocks = (args.channels + kBlock - 1) / kBlock;
  const int64_t block_ns = 50 + args.step.width * 40;
  pool_.parallel_for(static_cast<int64_t>(args.step.lanes) * blocks, cpu::grain_for(block_ns),
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t index = begin; index < end; ++index) {
                         const int first = static_cast<int>(index % blocks) * kBlock;
                         kernels_.conv_channels(args, static_cast<int>(index / blocks), first,
                                                std::min(first + kBlock, args.channels));
                       }
                     });
}

}  // namespace convoy
