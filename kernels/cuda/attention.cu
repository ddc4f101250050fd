#include "kernels/cuda/attention.h"

#include "base/check.h"
#include "kernels/cuda/cuda_op_set.h"
#include "kernels/cuda/cuda_stream.h"

namespace convoy {
namespace {

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

void check_attention(const PagedAttentionArgs& args) {
  const KvPlanes& cache = args.cache;
  CONVOY_CHECK_OP(args.step.lanes, >, 0);
  CONVOY_CHECK_OP(args.step.width, >, 0);
  CONVOY_CHECK_OP(cache.kv_heads, >, 0);
  CONVOY_CHECK_OP(cache.max_pages_per_row, >, 0);
  CONVOY_CHECK_OP(cache.head_dim, >, 0);
  CONVOY_CHECK_OP(cache.head_dim % 16, ==, 0);
  CONVOY_CHECK_OP(cache.head_dim, <=, cuda::kMaxAttentionDim);
  CONVOY_CHECK(has_kv_dtype(DeviceKind::cuda, cache.dtype), kv_dtype_name(cache.dtype));
  CONVOY_CHECK_OP(args.heads, >, 0);
  CONVOY_CHECK_OP(args.heads % cache.kv_heads, ==, 0);
  for (const ptrdiff_t stride :
       {args.q_column_stride, args.q_head_stride, args.gate_column_stride, args.gate_head_stride}) {
    CONVOY_CHECK_OP(stride % 8, ==, 0);
  }
  for (const void* const pointer :
       {args.q, args.gate, static_cast<const void*>(args.out), static_cast<const void*>(cache.k),
        static_cast<const void*>(cache.v)}) {
    CONVOY_CHECK(aligned(pointer), "attention reads 16 bytes at a time");
  }
}

}  // namespace

void CudaOpSet::paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  check_attention(args);
  if (args.step.position_class == PositionClass::generated) {
    cuda::attend_generated(handle_of(stream), args);
  } else if (cuda::has_hopper_attention(args)) {
    cuda::attend_prompt_hopper(handle_of(stream), args);
  } else {
    cuda::attend_prompt(handle_of(stream), args);
  }
}

}  // namespace convoy
