#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

struct NormProblem {
  int rows, groups, size;
  bool zero_centred;
  bool in_place;
  int gap;  // values between groups and between rows; a multiple of 8 allows 16-byte accesses
  int group_stride() const { return size + gap; }
  int row_stride() const { return groups * group_stride() + gap; }
  std::vector<float> x, weight;
};

NormProblem norm_problem(int rows, int groups, int size, bool zero_centred, bool in_place,
                         int gap = 7) {
  Random random(static_cast<uint32_t>(rows * 1000 + groups * 100 + size));
  NormProblem p{rows, groups, size, zero_centred, in_place, gap, {}, {}};
  p.x = random.floats(static_cast<size_t>(rows * p.row_stride()), -3.0F, 3.0F);
  p.weight = random.floats(static_cast<size_t>(size));
  return p;
}

std::vector<float> run_norm(Device& device, const NormProblem& p) {
  const ActivationArray x(device, p.x);
  const DeviceArray<float> weight(device, p.weight);
  const ActivationArray out = output_activations(device, p.x.size());
  const auto stream = device.make_stream();
  RmsNormArgs args;
  args.x = x.data();
  args.out = p.in_place ? x.data() : out.data();
  args.weight = weight.data();
  args.rows = p.rows;
  args.groups = p.groups;
  args.size = p.size;
  args.x_row_stride = args.out_row_stride = p.row_stride();
  args.x_group_stride = args.out_group_stride = p.group_stride();
  args.zero_centred = p.zero_centred;
  device.ops().rms_norm(*stream, args);
  stream->synchronize();
  return p.in_place ? x.read() : out.read();
}

void expect_norm(Device& device, const NormProblem& p) {
  const std::vector<float> x = as_activations(device, p.x);
  Doubles want(x.begin(), x.end());
  if (!p.in_place) want.assign(x.size(), kUntouched);
  for (int r = 0; r < p.rows; ++r) {
    for (int g = 0; g < p.groups; ++g) {
      const int at = r * p.row_stride() + g * p.group_stride();
      const Doubles y =
          oracle_rms_norm(x.data() + at, p.weight.data(), p.size, 1e-6, p.zero_centred ? 1 : 0);
      std::copy(y.begin(), y.end(), want.begin() + at);
    }
  }
  expect_close(run_norm(device, p), want, tolerance(device, 1e-6), 1e-3,
               "size " + std::to_string(p.size) + ", gap " + std::to_string(p.gap));
}

void rms_norm_matches_the_fp64_oracle(Device& device) {
  for (const int size : {1, 15, 16, 17, 128, 256, 1000}) {
    for (const bool zero_centred : {true, false}) {
      for (const bool in_place : {true, false}) {
        for (const int gap : {7, 8})
          expect_norm(device, norm_problem(3, 2, size, zero_centred, in_place, gap));
      }
    }
  }
}

void rms_norm_of_long_rows_matches_the_fp64_oracle(Device& device) {
  for (const int size : {1023, 1025, 2048, 5120, 8200, 12'288}) {
    for (const int gap : {0, 5, 8}) {
      expect_norm(device, norm_problem(2, 1, size, true, false, gap));
      expect_norm(device, norm_problem(2, 2, size, true, true, gap));
    }
  }
}

// A row's bits depend neither on the other rows nor on how it lies in memory.
void rms_norm_rows_stand_alone(Device& device) {
  for (const int size : {256, 5120}) {
    const NormProblem many = norm_problem(700, 1, size, true, false, 8);
    const std::vector<float> all = run_norm(device, many);
    for (const int row : {0, 131, 699}) {
      for (const int gap : {8, 3}) {
        NormProblem one = norm_problem(1, 1, size, true, false, gap);
        one.weight = many.weight;
        const auto at = static_cast<ptrdiff_t>(row) * many.row_stride();
        std::copy_n(many.x.begin() + at, size, one.x.begin());
        const std::vector<float> got = run_norm(device, one);
        expect_same_bits(std::vector<float>(got.begin(), got.begin() + size),
                         std::vector<float>(all.begin() + at, all.begin() + at + size),
                         "row " + std::to_string(row) + " of size " + std::to_string(size));
      }
    }
  }
}

void rms_norm_of_zeros_is_zero(Device& device) {
  NormProblem p = norm_problem(1, 1, 64, true, true);
  std::fill(p.x.begin(), p.x.end(), 0.0F);
  expect_same_bits(run_norm(device, p), p.x, "zeros");
}

struct GatedProblem {
  int rows, heads, size;
  int z_stride;
  std::vector<float> o, z, weight;
};

GatedProblem gated_problem(Device& device, int rows, int heads, int size, int gap = 9) {
  Random random(static_cast<uint32_t>(rows + heads * 10 + size));
  GatedProblem p{rows, heads, size, heads * size + gap, {}, {}, {}};
  p.o =
      as_activations(device, random.floats(static_cast<size_t>(rows * heads * size), -2.0F, 2.0F));
  p.z = as_activations(device, random.floats(static_cast<size_t>(rows * p.z_stride), -8.0F, 8.0F));
  p.weight = random.floats(static_cast<size_t>(size));
  return p;
}

std::vector<float> run_gated(Device& device, const GatedProblem& p, bool in_place) {
  const ActivationArray o(device, p.o);
  const ActivationArray z(device, p.z);
  const DeviceArray<float> weight(device, p.weight);
  const ActivationArray out = output_activations(device, p.o.size());
  const auto stream = device.make_stream();
  GatedRmsNormArgs args;
  args.o = o.data();
  args.z = z.data();
  args.z_row_stride = p.z_stride;
  args.out = in_place ? o.data() : out.data();
  args.weight = weight.data();
  args.rows = p.rows;
  args.heads = p.heads;
  args.size = p.size;
  device.ops().gated_rms_norm(*stream, args);
  stream->synchronize();
  return in_place ? o.read() : out.read();
}

void gated_rms_norm_matches_the_fp64_oracle(Device& device) {
  for (const int size : {16, 64, 100, 128, 200, 256}) {
    for (const bool in_place : {true, false}) {
      const GatedProblem p = gated_problem(device, 3, 3, size, in_place ? 8 : 9);
      Doubles want;
      for (int r = 0; r < p.rows; ++r) {
        for (int h = 0; h < p.heads; ++h) {
          const Doubles y = oracle_rms_norm(p.o.data() + (r * p.heads + h) * size, p.weight.data(),
                                            size, 1e-6, 0);
          for (int i = 0; i < size; ++i) {
            want.push_back(y[static_cast<size_t>(i)] *
                           oracle_silu(p.z[static_cast<size_t>(r * p.z_stride + h * size + i)]));
          }
        }
      }
      expect_close(run_gated(device, p, in_place), want, tolerance(device, 2e-6), 1e-3,
                   "size " + std::to_string(size));
    }
  }
}

constexpr KernelCase kCases[] = {
    {"RmsNormMatchesTheFp64Oracle", rms_norm_matches_the_fp64_oracle},
    {"RmsNormOfLongRowsMatchesTheFp64Oracle", rms_norm_of_long_rows_matches_the_fp64_oracle},
    {"RmsNormRowsStandAlone", rms_norm_rows_stand_alone},
    {"RmsNormOfZerosIsZero", rms_norm_of_zeros_is_zero},
    {"GatedRmsNormMatchesTheFp64Oracle", gated_rms_norm_matches_the_fp64_oracle},
};

}  // namespace

std::span<const KernelCase> norm_cases() {
  return kCases;
}

std::vector<NamedResult> norm_results(Device& device) {
  return {{"rms_norm", run_norm(device, norm_problem(300, 4, 259, true, false))},
          {"gated_rms_norm", run_gated(device, gated_problem(device, 300, 6, 128), false)}};
}

}  // namespace convoy::test
