#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {
namespace {

constexpr int kMaxBlocks = 64;
constexpr int kBlockFloor = 4096;

// What is left when nothing is above -infinity: the first value that is a number, or 0.
int32_t first_number(const float* values, int count) {
  for (int i = 0; i < count; ++i) {
    if (!std::isnan(values[i])) return i;
  }
  return 0;
}

}  // namespace

void CpuOpSet::argmax(Stream& /*stream*/, const ArgmaxArgs& args) {
  CONVOY_CHECK_OP(args.valid, >, 0);
  CONVOY_CHECK_OP(args.row_stride, >=, args.valid);
  const int block = std::max(kBlockFloor, (args.valid + kMaxBlocks - 1) / kMaxBlocks);
  const int blocks = (args.valid + block - 1) / block;
  for (int row = 0; row < args.rows; ++row) {
    const float* logits = args.logits + row * args.row_stride;
    float best_value[kMaxBlocks];
    int32_t best_index[kMaxBlocks];
    pool_.parallel_for(blocks, cpu::grain_for(block / 4), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int first = static_cast<int>(i) * block;
        kernels_.argmax_range(logits, first, std::min(first + block, args.valid), &best_value[i],
                              &best_index[i]);
      }
    });
    int best = -1;
    for (int i = 0; i < blocks; ++i) {
      if (best_index[i] >= 0 && (best < 0 || best_value[i] > best_value[best])) best = i;
    }
    args.ids[row] = best < 0 ? first_number(logits, args.valid) : best_index[best];
  }
}

}  // namespace convoy
