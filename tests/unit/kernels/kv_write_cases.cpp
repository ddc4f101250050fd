// What kv_write leaves in the planes, against an independent quantiser, byte for byte.
#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kv_codec.h"

namespace convoy::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kLanes = 2;
constexpr int kWidth = 5;
constexpr int kPages = 3;  // of a lane

struct WriteProblem {
  KvDtype dtype;
  int kv_heads, head_dim;
  ptrdiff_t stride;  // of columns
  std::vector<ControlRow> control;
  std::vector<int32_t> block_tables;
  std::vector<float> k, v;
};

// Values of many magnitudes. Column 0 is ordinary; column 1 all zeros, or nearly; column 2 beyond
// what a format holds; column 3 has what is no number.
std::vector<float> hard_values(Device& device, const WriteProblem& p, Random& random) {
  std::vector<float> x(static_cast<size_t>(p.stride) * kLanes * kWidth);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto column = static_cast<int>(i / static_cast<size_t>(p.stride)) % kWidth;
    const auto d = static_cast<int>(i % static_cast<size_t>(p.stride));
    const float value = random.uniform(-1.0F, 1.0F);
    x[i] = column == 0   ? 3.0F * value
           : column == 1 ? (d % 128 < 64 ? 0.0F : value * std::ldexp(1.0F, -16 - d % 12))
           : column == 2 ? value * std::ldexp(1.0F, d % 64)
           : column == 3 ? (d % 7 == 0     ? kNan
                            : d % 96 == 90 ? -kInfinity
                                           : value)
                         : value * 40.0F;
  }
  return as_activations(device, x);
}

WriteProblem write_problem(Device& device, KvDtype dtype, int kv_heads, int head_dim, int padding) {
  WriteProblem p{dtype, kv_heads, head_dim, ptrdiff_t{kv_heads} * head_dim + padding,
                 {},    {},       {},       {}};
  Random random(static_cast<uint32_t>(head_dim + padding));
  for (int c = 0; c < kLanes * kWidth; ++c) {
    const int lane = c / kWidth;  // the second one's last column is dead
    p.control.push_back(
        {61 + 64 * lane + c % kWidth, {0, 0, 0}, lane, lane == 0 ? kWidth : kWidth - 1, -1, 0});
  }
  for (int page = 0; page < kLanes * kPages; ++page)
    p.block_tables.push_back((page * 5 + 2) % (kLanes * kPages));
  p.k = hard_values(device, p, random);
  p.v = hard_values(device, p, random);
  return p;
}

KvPlaneImage expected_plane(const WriteProblem& p, const std::vector<float>& x) {
  KvPlaneImage plane(p.dtype, static_cast<int>(p.block_tables.size()), p.kv_heads, p.head_dim);
  for (size_t c = 0; c < p.control.size(); ++c) {
    const ControlRow& control = p.control[c];
    if (static_cast<int>(c) % kWidth >= control.valid_columns) continue;
    const int page = p.block_tables[static_cast<size_t>(control.kv_row * kPages +
                                                        control.cache_position / kPageTokens)];
    for (int head = 0; head < p.kv_heads; ++head) {
      plane.store(page, head, control.cache_position % kPageTokens,
                  &x[c * static_cast<size_t>(p.stride) + static_cast<size_t>(head * p.head_dim)]);
    }
  }
  return plane;
}

void expect_written(Device& device, const WriteProblem& p) {
  const KvPlaneImage empty(p.dtype, static_cast<int>(p.block_tables.size()), p.kv_heads,
                           p.head_dim);
  const DeviceArray<ControlRow> control(device, p.control);
  const DeviceArray<int32_t> tables(device, p.block_tables);
  const ActivationArray k(device, p.k), v(device, p.v);
  const DeviceArray<uint8_t> k_plane(device, empty.bytes()), v_plane(device, empty.bytes());
  const auto stream = device.make_stream();
  device.ops().kv_write(*stream, {{control.data(), kLanes, kWidth, PositionClass::prompt},
                                  k.data(),
                                  v.data(),
                                  p.stride,
                                  p.stride,
                                  {k_plane.data(), v_plane.data(), tables.data(), kPages,
                                   p.kv_heads, p.head_dim, p.dtype}});
  stream->synchronize();
  const std::string what =
      std::string("KV as ") + kv_dtype_name(p.dtype) + ", head_dim " + std::to_string(p.head_dim);
  expect_same_bits(k_plane.read(), expected_plane(p, p.k).bytes(), what + ", keys");
  expect_same_bits(v_plane.read(), expected_plane(p, p.v).bytes(), what + ", values");
}

void kv_write_stores_what_the_dtype_says(Device& device) {
  std::vector<KvDtype> dtypes = quantised_dtypes(device);
  dtypes.push_back(default_kv_dtype(device.kind()));
  for (const KvDtype dtype : dtypes) {
    for (const int padding : {0, 8, 3}) {  // the last one aligns nothing
      for (const int head_dim : {16, 48, 64, 80, 128, 256}) {
        expect_written(device, write_problem(device, dtype, 3, head_dim, padding));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// What a token stores is its own affair: a neighbour that is no number changes none of its bytes.
void what_is_no_number_harms_no_other_token(Device& device) {
  for (const KvDtype dtype : quantised_dtypes(device)) {
    WriteProblem p = write_problem(device, dtype, 2, 128, 0);
    const KvPlaneImage before = expected_plane(p, p.k);
    const size_t row = static_cast<size_t>(p.stride);
    std::fill_n(p.k.begin() + static_cast<ptrdiff_t>(row), row, kNan);
    expect_written(device, p);
    const KvPlaneImage after = expected_plane(p, p.k);
    size_t changed = 0;
    for (size_t i = 0; i < before.bytes().size(); ++i)
      changed += before.bytes()[i] != after.bytes()[i] ? 1 : 0;
    EXPECT_LE(changed, 2 * kv_token_bytes(dtype, 128));
  }
}

constexpr KernelCase kCases[] = {
    {"KvWriteStoresWhatTheDtypeSays", kv_write_stores_what_the_dtype_says},
    {"KvWriteOfNoNumberHarmsNoOtherToken", what_is_no_number_harms_no_other_token},
};

}  // namespace

std::span<const KernelCase> kv_write_cases() {
  return kCases;
}

}  // namespace convoy::test
