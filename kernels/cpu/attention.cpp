#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {
namespace {

constexpr int kMaxHeadDim = 512;

void check_planes(const KvPlanes& cache) {
  CONVOY_CHECK_OP(cache.kv_heads, >, 0);
  CONVOY_CHECK_OP(cache.head_dim, >, 0);
  CONVOY_CHECK_OP(cache.head_dim % 16, ==, 0);
  CONVOY_CHECK_OP(cache.head_dim, <=, kMaxHeadDim);
  CONVOY_CHECK_OP(cache.max_pages_per_row, >, 0);
  CONVOY_CHECK(has_kv_dtype(DeviceKind::cpu, cache.dtype), kv_dtype_name(cache.dtype));
}

int live_columns(const StepView& step, int lane) {
  return std::clamp(step.control[lane * step.width].valid_columns, 0, step.width);
}

// One token's values of one head, into its slot of a block.
void write_head(const cpu::KernelTable& kernels, const KvPlanes& cache, const float* x,
                std::byte* block, size_t slot) {
  const auto dim = static_cast<size_t>(cache.head_dim);
  if (cache.dtype == KvDtype::f32) {
    std::memcpy(block + slot * dim * sizeof(float), x, dim * sizeof(float));
    return;
  }
  auto* const q = reinterpret_cast<int8_t*>(block);
  auto* const scales = reinterpret_cast<uint16_t*>(block + kPageTokens * dim);
  kernels.quantise_int8(x, cache.head_dim, q + slot * dim,
                        scales + slot * static_cast<size_t>(kv_scale_groups(cache.head_dim)));
}

void write_column(const cpu::KernelTable& kernels, const KvWriteArgs& args, int column) {
  const KvPlanes& cache = args.cache;
  const ControlRow& control = args.step.control[column];
  const int block = control.cache_position / kPageTokens;
  CONVOY_CHECK_OP(block, <, cache.max_pages_per_row);
  const size_t block_bytes = kv_block_bytes(cache.dtype, cache.head_dim);
  const auto page = static_cast<size_t>(
      cache.block_tables[static_cast<ptrdiff_t>(control.kv_row) * cache.max_pages_per_row + block]);
  const auto slot = static_cast<size_t>(control.cache_position % kPageTokens);
  const float* k = static_cast<const float*>(args.k) + column * args.k_column_stride;
  const float* v = static_cast<const float*>(args.v) + column * args.v_column_stride;
  size_t at = page * static_cast<size_t>(cache.kv_heads) * block_bytes;
  for (int head = 0; head < cache.kv_heads; ++head) {
    write_head(kernels, cache, k, static_cast<std::byte*>(cache.k) + at, slot);
    write_head(kernels, cache, v, static_cast<std::byte*>(cache.v) + at, slot);
    k += cache.head_dim;
    v += cache.head_dim;
    at += block_bytes;
  }
}

// How the live (column, head) pairs of a step are cut into tasks of up to `rows_per_task` pairs of
// one KV head.
struct AttentionPlan {
  int first_task[kMaxLanes + 1] = {};
  int rows_per_task = 0;
  int64_t tasks = 0;
  int64_t work = 0;  // multiply-adds
};

AttentionPlan plan_attention(const PagedAttentionArgs& args, int rows_per_task) {
  AttentionPlan plan;
  plan.rows_per_task = rows_per_task;
  const int group = args.heads / args.cache.kv_heads;
  for (int lane = 0; lane < args.step.lanes; ++lane) {
    const int live = live_columns(args.step, lane);
    const int pieces = (live * group + rows_per_task - 1) / rows_per_task;
    plan.first_task[lane + 1] = plan.first_task[lane] + pieces * args.cache.kv_heads;
    if (live == 0) continue;
    const int64_t length = args.step.control[lane * args.step.width + live - 1].cache_position + 1;
    CONVOY_CHECK_OP((length - 1) / kPageTokens, <, args.cache.max_pages_per_row);
    plan.work += length * live * args.heads * args.cache.head_dim * 2;
  }
  plan.tasks = plan.first_task[args.step.lanes];
  return plan;
}

cpu::AttentionTask task_of(const PagedAttentionArgs& args, const AttentionPlan& plan, int index) {
  cpu::AttentionTask task;
  while (plan.first_task[task.lane + 1] <= index) ++task.lane;
  const int in_lane = index - plan.first_task[task.lane];
  const int group = args.heads / args.cache.kv_heads;
  const int rows = live_columns(args.step, task.lane) * group;
  // KV heads vary slowest: neighbouring tasks read the same pages.
  const int pieces = (rows + plan.rows_per_task - 1) / plan.rows_per_task;
  task.kv_head = in_lane / pieces;
  task.first_row = in_lane % pieces * plan.rows_per_task;
  task.rows = std::min(plan.rows_per_task, rows - task.first_row);
  return task;
}

}  // namespace

void CpuOpSet::kv_write(Stream& /*stream*/, const KvWriteArgs& args) {
  cpu::check_step(args.step);
  check_planes(args.cache);
  const int64_t column_ns = 20 + args.cache.kv_heads * args.cache.head_dim / 4;
  pool_.parallel_for(args.step.columns(), cpu::grain_for(column_ns),
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t column = begin; column < end; ++column) {
                         if (column % args.step.width < args.step.control[column].valid_columns) {
                           write_column(kernels_, args, static_cast<int>(column));
                         }
                       }
                     });
}

void CpuOpSet::update_block_tables(Stream& /*stream*/, const BlockTableArgs& args) {
  for (int i = 0; i < args.count; ++i) {
    const BlockTableDelta& delta = args.deltas[i];
    CONVOY_CHECK_OP(delta.block, <, args.max_pages_per_row);
    args.tables[static_cast<ptrdiff_t>(delta.kv_row) * args.max_pages_per_row + delta.block] =
        delta.page;
  }
}

void CpuOpSet::paged_attention(Stream& /*stream*/, const PagedAttentionArgs& args) {
  cpu::check_step(args.step);
  check_planes(args.cache);
  CONVOY_CHECK_OP(args.heads, >, 0);
  CONVOY_CHECK_OP(args.heads % args.cache.kv_heads, ==, 0);
  // Few rows (decode): smaller tasks, so that every thread has one.
  AttentionPlan plan = plan_attention(args, cpu::kAttentionRows);
  for (int rows = cpu::kAttentionRows / 2; rows >= 4 && plan.tasks < pool_.threads(); rows /= 2) {
    plan = plan_attention(args, rows);
  }
  const size_t row_bytes =
      static_cast<size_t>(args.heads) * static_cast<size_t>(args.cache.head_dim) * sizeof(float);
  for (int column = 0; column < args.step.columns(); ++column) {
    if (column % args.step.width < live_columns(args.step, column / args.step.width)) continue;
    std::memset(static_cast<float*>(args.out) +
                    static_cast<ptrdiff_t>(column) * args.heads * args.cache.head_dim,
                0, row_bytes);
  }
  if (plan.tasks == 0) return;
  const int64_t task_ns = plan.work / plan.tasks / 30;
  pool_.parallel_for(plan.tasks, cpu::grain_for(task_ns), [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      kernels_.attention_rows(args, task_of(args, plan, static_cast<int>(index)));
    }
  });
}

}  // namespace convoy
