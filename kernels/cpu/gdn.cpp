#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {
namespace {

void check_gdn(const GdnArgs& args) {
  cpu::check_step(args.step);
  CONVOY_CHECK_OP(args.key_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads, >, 0);
  CONVOY_CHECK_OP(args.value_heads % args.key_heads, ==, 0);
  CONVOY_CHECK_OP(args.key_dim, >, 0);
  CONVOY_CHECK_OP(args.key_dim % 16, ==, 0);
  CONVOY_CHECK_OP(args.key_dim, <=, 256);
  CONVOY_CHECK_OP(args.value_dim, >, 0);
  CONVOY_CHECK_OP(args.value_dim % 16, ==, 0);
  CONVOY_CHECK_OP(args.value_dim, <=, 256);
}

// The values of a state that one (lane, head) walks over, for its whole width.
int64_t head_work(const GdnArgs& args) {
  return static_cast<int64_t>(args.key_dim) * args.value_dim * args.step.width;
}

}  // namespace

void CpuOpSet::normalise_keys(const GdnArgs& args) {
  pool_.parallel_for(static_cast<int64_t>(args.step.columns()) * args.key_heads,
                     cpu::grain_for(30 + args.key_dim / 4), [&](int64_t begin, int64_t end, int) {
                       kernels_.gdn_normalise(args, begin, end);
                     });
}

void CpuOpSet::gdn_recurrent(Stream& /*stream*/, const GdnArgs& args) {
  check_gdn(args);
  normalise_keys(args);
  pool_.parallel_for(static_cast<int64_t>(args.step.lanes) * args.value_heads,
                     cpu::grain_for(head_work(args) / 6), [&](int64_t begin, int64_t end, int) {
                       for (int64_t index = begin; index < end; ++index) {
                         kernels_.gdn_recurrent_head(args,
                                                     static_cast<int>(index / args.value_heads),
                                                     static_cast<int>(index % args.value_heads));
                       }
                     });
}

void CpuOpSet::gdn_chunk(Stream& /*stream*/, const GdnArgs& args) {
  check_gdn(args);
  for (int lane = 0; lane < args.step.lanes; ++lane) {
    const ControlRow& first = args.step.control[lane * args.step.width];
    if (first.valid_columns > 0) CONVOY_CHECK_OP(first.cache_position % kPageTokens, ==, 0);
  }
  normalise_keys(args);
  pool_.parallel_for(static_cast<int64_t>(args.step.lanes) * args.value_heads,
                     cpu::grain_for(head_work(args) / 12), [&](int64_t begin, int64_t end, int) {
                       for (int64_t index = begin; index < end; ++index) {
                         kernels_.gdn_chunk_head(args, static_cast<int>(index / args.value_heads),
                                                 static_cast<int>(index % args.value_heads));
                       }
                     });
}

}  // namespace convoy
