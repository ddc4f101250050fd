#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"

namespace convoy {
namespace {

constexpr int kPanel = 64;

int panels_of(int out_features) {
  return (out_features + kPanel - 1) / kPanel;
}

// What one core needs for a panel: reading it (40 GB/s) or the sums (100 multiply-adds a
// nanosecond), whichever is more.
int64_t panel_ns(int rows, int in_features) {
  const int64_t weights = static_cast<int64_t>(in_features) * kPanel;
  return std::max(weights * 2 / 40, weights * rows / 100);
}

}  // namespace

size_t CpuOpSet::packed_linear_bytes(int out_features, int in_features) const {
  CONVOY_CHECK_OP(out_features, >, 0);
  CONVOY_CHECK_OP(in_features, >, 0);
  return static_cast<size_t>(panels_of(out_features)) * kPanel * static_cast<size_t>(in_features) *
         sizeof(uint16_t);
}

void CpuOpSet::pack_linear(const void* source, int rows, int first_row, int out_features,
                           int in_features, void* destination) {
  CONVOY_CHECK_OP(rows, >=, 0);
  CONVOY_CHECK_OP(first_row, >=, 0);
  CONVOY_CHECK_OP(first_row + rows, <=, out_features);
  const auto depth = static_cast<size_t>(in_features);
  const auto* from = static_cast<const unsigned char*>(source);
  auto* to = static_cast<uint16_t*>(destination);
  // By panels, so that two threads never write one cache line.
  const int first_panel = first_row / kPanel;
  const int panels = rows == 0 ? 0 : (first_row + rows - 1) / kPanel - first_panel + 1;
  pool_.parallel_for(
      panels, cpu::grain_for(in_features * kPanel), [&](int64_t begin, int64_t end, int) {
        for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
          const int row_begin = std::max(first_row, static_cast<int>(panel) * kPanel);
          const int row_end = std::min(first_row + rows, static_cast<int>(panel + 1) * kPanel);
          uint16_t* out = to + static_cast<size_t>(panel) * depth * kPanel;
          // Blocks of k keep both sides in the cache: rows are read along k, the panel is written
          // across rows.
          constexpr size_t kBlock = 64;
          for (size_t k0 = 0; k0 < depth; k0 += kBlock) {
            const size_t k_count = std::min(kBlock, depth - k0);
            for (int row = row_begin; row < row_end; ++row) {
              uint16_t values[kBlock];
              const size_t at =
                  (static_cast<size_t>(row - first_row) * depth + k0) * sizeof(uint16_t);
              std::memcpy(values, from + at, k_count * sizeof(uint16_t));
              for (size_t k = 0; k < k_count; ++k)
                out[(k0 + k) * kPanel + static_cast<size_t>(row % kPanel)] = values[k];
            }
          }
          // The padding of the last panel: zero whatever the memory held before.
          if (row_end == out_features && row_end % kPanel != 0) {
            for (size_t k = 0; k < depth; ++k) {
              for (size_t n = static_cast<size_t>(row_end % kPanel); n < kPanel; ++n)
                out[k * kPanel + n] = 0;
            }
          }
        }
      });
}

void CpuOpSet::linear(Stream& /*stream*/, const LinearArgs& args) {
  CONVOY_CHECK_OP(args.weight.out_features, >, 0);
  CONVOY_CHECK_OP(args.weight.in_features, >, 0);
  CONVOY_CHECK_OP(args.rows, >=, 0);
  CONVOY_CHECK_OP(args.out_row_stride, >=, args.weight.out_features);
  CONVOY_CHECK_OP(args.x_row_stride, >=, args.weight.in_features);
  if (args.rows == 0) return;
  const int64_t grain = cpu::grain_for(panel_ns(args.rows, args.weight.in_features));
  pool_.parallel_for(panels_of(args.weight.out_features), grain,
                     [&](int64_t begin, int64_t end, int) {
                       kernels_.linear_panels(args, static_cast<int>(begin), static_cast<int>(end));
                     });
}

}  // namespace convoy
