#include <algorithm>
#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

struct LinearProblem {
  int rows, in_features, out_features;
  bool accumulate = false;
  int x_gap = 0, out_gap = 0;  // values between rows
  std::vector<uint16_t> weight;
  std::vector<float> x, out;

  int x_stride() const { return in_features + x_gap; }
  int out_stride() const { return out_features + out_gap; }
};

LinearProblem linear_problem(int rows, int in_features, int out_features, bool accumulate = false) {
  Random random(static_cast<uint32_t>(rows * 7919 + in_features * 31 + out_features));
  LinearProblem p{rows, in_features, out_features, accumulate, 3, 5, {}, {}, {}};
  p.weight = random.bf16s(static_cast<size_t>(in_features) * static_cast<size_t>(out_features));
  p.x = random.floats(static_cast<size_t>(rows * p.x_stride()));
  p.out = random.floats(static_cast<size_t>(rows * p.out_stride()));
  return p;
}

// Packs in two calls, from an address that is not aligned, over memory that was not zero.
DeviceArray<uint16_t> packed_weight(Device& device, const LinearProblem& p) {
  OpSet& ops = device.ops();
  const size_t bytes = ops.packed_linear_bytes(p.out_features, p.in_features);
  DeviceArray<uint16_t> packed(device, std::vector<uint16_t>(bytes / 2, 0x7FC0));
  std::vector<unsigned char> shifted(p.weight.size() * 2 + 1);
  std::memcpy(shifted.data() + 1, p.weight.data(), p.weight.size() * 2);
  const int first_part = p.out_features / 3;
  const size_t second_at =
      1 + static_cast<size_t>(first_part) * static_cast<size_t>(p.in_features) * 2;
  ops.pack_linear(shifted.data() + 1, first_part, 0, p.out_features, p.in_features, packed.data());
  ops.pack_linear(shifted.data() + second_at, p.out_features - first_part, first_part,
                  p.out_features, p.in_features, packed.data());
  return packed;
}

std::vector<float> run_linear(Device& device, const LinearProblem& p) {
  const DeviceArray<uint16_t> weight = packed_weight(device, p);
  const DeviceArray<float> x(device, p.x);
  const DeviceArray<float> out(device, p.out);
  const auto stream = device.make_stream();
  LinearArgs args;
  args.x = x.data();
  args.x_row_stride = p.x_stride();
  args.weight = {weight.data(), p.out_features, p.in_features};
  args.out = out.data();
  args.out_row_stride = p.out_stride();
  args.rows = p.rows;
  args.accumulate = p.accumulate;
  device.ops().linear(*stream, args);
  stream->synchronize();
  weight.read();
  return out.read();
}

// The contract to the letter: what every CPU variant must equal bit by bit.
std::vector<float> sequential_linear(const LinearProblem& p) {
  std::vector<float> out = p.out;
  for (int r = 0; r < p.rows; ++r) {
    for (int n = 0; n < p.out_features; ++n) {
      float sum = 0;
      for (int k = 0; k < p.in_features; ++k) {
        sum = std::fma(p.x[static_cast<size_t>(r * p.x_stride() + k)],
                       from_bf16(p.weight[static_cast<size_t>(n * p.in_features + k)]), sum);
      }
      float& to = out[static_cast<size_t>(r * p.out_stride() + n)];
      to = p.accumulate ? to + sum : sum;
    }
  }
  return out;
}

struct Shape {
  int in_features, out_features;
};
constexpr Shape kShapes[] = {{1, 1}, {63, 65}, {128, 64}, {1100, 200}, {2500, 31}};

void matches_the_fp64_oracle(Device& device) {
  for (const Shape shape : kShapes) {
    for (const bool accumulate : {false, true}) {
      const LinearProblem p = linear_problem(5, shape.in_features, shape.out_features, accumulate);
      const std::vector<float> got = run_linear(device, p);
      Doubles want(p.out.begin(), p.out.end());  // the gaps between rows stay as they were
      for (int r = 0; r < p.rows; ++r) {
        for (int n = 0; n < p.out_features; ++n) {
          double sum = 0;
          for (int k = 0; k < p.in_features; ++k) {
            sum += static_cast<double>(p.x[static_cast<size_t>(r * p.x_stride() + k)]) *
                   from_bf16(p.weight[static_cast<size_t>(n * p.in_features + k)]);
          }
          double& to = want[static_cast<size_t>(r * p.out_stride() + n)];
          to = accumulate ? to + sum : sum;
        }
      }
      // Sequential f32 sums of k terms of size 1/3: the error grows like sqrt(k) * sum * 2^-24.
      expect_close(got, want, 1e-5, 1.0 + std::sqrt(p.in_features),
                   "in " + std::to_string(p.in_features));
    }
  }
}

void is_a_sequential_fma_for_every_number_of_rows(Device& device) {
  for (const Shape shape : kShapes) {
    for (const int rows : {1, 2, 3, 5, 6, 7, 8, 13, 64, 97, 130}) {
      if (rows > 13 && shape.in_features > 2000) continue;
      const LinearProblem p =
          linear_problem(rows, shape.in_features, shape.out_features, rows % 2 == 1);
      expect_same_bits(run_linear(device, p), sequential_linear(p),
                       std::to_string(rows) + " rows, in " + std::to_string(shape.in_features));
      if (testing::Test::HasFailure()) return;
    }
  }
}

void rows_do_not_depend_on_their_number(Device& device) {
  const LinearProblem all = linear_problem(130, 300, 100);
  const std::vector<float> together = run_linear(device, all);
  for (int r = 0; r < all.rows; r += 9) {
    LinearProblem one = all;
    one.rows = 1;
    one.x.assign(all.x.begin() + r * all.x_stride(), all.x.begin() + (r + 1) * all.x_stride());
    one.out.assign(all.out.begin() + r * all.out_stride(),
                   all.out.begin() + (r + 1) * all.out_stride());
    const std::vector<float> want(together.begin() + r * all.out_stride(),
                                  together.begin() + (r + 1) * all.out_stride());
    expect_same_bits(run_linear(device, one), want, "row " + std::to_string(r) + " alone");
  }
}

void no_rows_change_nothing(Device& device) {
  LinearProblem p = linear_problem(1, 16, 16);
  p.rows = 0;
  expect_same_bits(run_linear(device, p), p.out, "no rows");
}

constexpr KernelCase kCases[] = {
    {"LinearMatchesTheFp64Oracle", matches_the_fp64_oracle},
    {"LinearIsASequentialFmaForEveryNumberOfRows", is_a_sequential_fma_for_every_number_of_rows},
    {"LinearRowsDoNotDependOnTheirNumber", rows_do_not_depend_on_their_number},
    {"LinearWithoutRowsChangesNothing", no_rows_change_nothing},
};

}  // namespace

std::span<const KernelCase> linear_cases() {
  return kCases;
}

std::vector<NamedResult> linear_results(Device& device) {
  // Large enough that a pool divides the panels.
  return {{"linear of one row", run_linear(device, linear_problem(1, 2048, 3000))},
          {"linear of 40 rows", run_linear(device, linear_problem(40, 1200, 700, true))}};
}

}  // namespace convoy::test
