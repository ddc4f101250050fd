#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_op_set.h"
#include "kernels/ops/random_values.h"

namespace convoy {
namespace {

constexpr int64_t kGroupsPerItem = 256;
constexpr int64_t kGroupNs = 40;

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);  // finite: the caller checked
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

template <typename T, typename Convert>
void fill_groups(const FillRandomArgs& args, int64_t begin, int64_t end, const Convert& convert) {
  auto* const out = static_cast<T*>(args.out);
  const auto first_group = args.first / draw::kRandomGroup;
  for (int64_t group = begin; group < end; ++group) {
    float values[draw::kRandomGroup];
    draw::random_values(args.seed, first_group + static_cast<uint64_t>(group), args.centre,
                        args.spread, values);
    const int64_t at = group * draw::kRandomGroup;
    const int64_t count = std::min<int64_t>(draw::kRandomGroup, args.count - at);
    for (int64_t i = 0; i < count; ++i) out[at + i] = convert(values[i]);
  }
}

}  // namespace

void CpuOpSet::fill_random(Stream& /*stream*/, const FillRandomArgs& args) {
  CONVOY_CHECK_OP(args.count, >=, 0);
  CONVOY_CHECK_OP(args.first % draw::kRandomGroup, ==, 0U);
  CONVOY_CHECK(std::isfinite(args.centre) && std::isfinite(args.spread), "random values of NaN");
  const int64_t groups = (args.count + draw::kRandomGroup - 1) / draw::kRandomGroup;
  pool_.parallel_for((groups + kGroupsPerItem - 1) / kGroupsPerItem,
                     cpu::grain_for(kGroupsPerItem * kGroupNs),
                     [&](int64_t begin, int64_t end, int) {
                       begin *= kGroupsPerItem;
                       end = std::min(end * kGroupsPerItem, groups);
                       if (args.f32_out)
                         fill_groups<float>(args, begin, end, [](float value) { return value; });
                       else
                         fill_groups<uint16_t>(args, begin, end, to_bf16);
                     });
}

}  // namespace convoy
