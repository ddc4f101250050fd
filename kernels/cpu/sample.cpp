#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"
#include "kernels/draw/token_draw.h"

namespace convoy {

void CpuOpSet::sample(Stream& /*stream*/, const SampleArgs& args) {
  CONVOY_CHECK_OP(args.valid, >, 0);
  CONVOY_CHECK_OP(args.row_stride, >=, args.valid);
  // Candidates of a whole vocabulary are megabytes: kept from draw to draw.
  thread_local TokenDraw draw;
  for (int row = 0; row < args.rows; ++row) {
    if (args.rules[row].greedy()) {
      args.drawn[row] = args.ids[row];
      continue;
    }
    const std::span logits(args.logits + row * args.row_stride, static_cast<size_t>(args.valid));
    args.drawn[row] = draw.draw(logits, args.rules[row]);
    if (args.drawn[row] >= 0) args.ids[row] = args.drawn[row];
  }
}

}  // namespace convoy
