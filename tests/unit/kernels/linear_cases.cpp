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
  int x_gap = 3, out_gap = 5;  // values between rows
  PositionClass position_class = PositionClass::prompt;
  bool f32_out = false;
  std::vector<uint16_t> weight = {};
  std::vector<float> x = {}, out = {};

  int x_stride() const { return in_features + x_gap; }
  int out_stride() const { return out_features + out_gap; }
  std::string name() const {
    return std::to_string(rows) + " rows, in " + std::to_string(in_features) + ", out " +
           std::to_string(out_features) + (accumulate ? ", accumulating" : "") +
           (f32_out ? ", f32" : "") +
           (position_class == PositionClass::prompt ? ", prompt" : ", generated");
  }
};

constexpr PositionClass kClasses[] = {PositionClass::prompt, PositionClass::generated};

void fill_problem(LinearProblem& p) {
  Random random(static_cast<uint32_t>(p.rows * 7919 + p.in_features * 31 + p.out_features));
  p.weight = random.bf16s(static_cast<size_t>(p.in_features) * static_cast<size_t>(p.out_features));
  p.x = random.floats(static_cast<size_t>(p.rows * p.x_stride()));
  p.out = random.floats(static_cast<size_t>(p.rows * p.out_stride()));
}

LinearProblem linear_problem(int rows, int in_features, int out_features, bool accumulate = false) {
  LinearProblem p{rows, in_features, out_features, accumulate};
  fill_problem(p);
  return p;
}

// Rows that begin at multiples of 16 bytes, which some kernels ask for.
LinearProblem aligned_problem(int rows, int in_features, int out_features,
                              PositionClass position_class, bool accumulate = false) {
  LinearProblem p{rows, in_features, out_features, accumulate, 8, 8, position_class};
  fill_problem(p);
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

LinearArgs linear_args(const LinearProblem& p, const void* x, const uint16_t* weight, void* out) {
  LinearArgs args;
  args.x = x;
  args.x_row_stride = p.x_stride();
  args.weight = {weight, p.out_features, p.in_features};
  args.out = out;
  args.out_row_stride = p.out_stride();
  args.rows = p.rows;
  args.accumulate = p.accumulate;
  args.position_class = p.position_class;
  args.f32_out = p.f32_out;
  return args;
}

template <typename OutArray>
std::vector<float> run_into(Device& device, const LinearProblem& p, const OutArray& out,
                            int padded_rows) {
  const DeviceArray<uint16_t> weight = packed_weight(device, p);
  const ActivationArray x(device, p.x);
  const auto stream = device.make_stream();
  LinearArgs args = linear_args(p, x.data(), weight.data(), out.data());
  args.padded_rows = padded_rows;
  device.ops().linear(*stream, args);
  stream->synchronize();
  weight.read();
  return out.read();
}

std::vector<float> run_linear(Device& device, const LinearProblem& p, int padded_rows = 0) {
  if (p.f32_out) return run_into(device, p, DeviceArray<float>(device, p.out), padded_rows);
  return run_into(device, p, ActivationArray(device, p.out), padded_rows);
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
// Like the layers of models: long sums, many outputs, outputs that fill no tile.
constexpr Shape kLayerShapes[] = {{256, 768}, {1024, 640}, {5120, 104}, {128, 8216}, {17408, 72}};

Doubles oracle_linear(Device& device, const LinearProblem& p) {
  const std::vector<float> x = as_activations(device, p.x);
  const std::vector<float> out = p.f32_out ? p.out : as_activations(device, p.out);
  Doubles want(out.begin(), out.end());  // the gaps between rows stay as they were
  for (int r = 0; r < p.rows; ++r) {
    for (int n = 0; n < p.out_features; ++n) {
      double sum = 0;
      for (int k = 0; k < p.in_features; ++k) {
        sum += static_cast<double>(x[static_cast<size_t>(r * p.x_stride() + k)]) *
               from_bf16(p.weight[static_cast<size_t>(n * p.in_features + k)]);
      }
      double& to = want[static_cast<size_t>(r * p.out_stride() + n)];
      to = p.accumulate ? to + sum : sum;
    }
  }
  return want;
}

void expect_oracle(Device& device, const LinearProblem& p) {
  // f32 sums of k terms of size 1/3: the error of a sequential one grows like sqrt(k) * sum *
  // 2^-24; tensor cores cut off what it rounds.
  const double f32 = has_bf16_activations(device) ? 5e-5 : 1e-5;
  expect_close(run_linear(device, p), oracle_linear(device, p),
               p.f32_out ? f32 : tolerance(device, f32), 1.0 + std::sqrt(p.in_features), p.name());
}

void matches_the_fp64_oracle(Device& device) {
  for (const Shape shape : kShapes) {
    for (const bool accumulate : {false, true}) {
      for (const PositionClass position_class : kClasses) {
        LinearProblem p = linear_problem(5, shape.in_features, shape.out_features, accumulate);
        p.position_class = position_class;
        expect_oracle(device, p);
      }
    }
  }
}

void matches_the_fp64_oracle_at_the_shapes_of_layers(Device& device) {
  for (const Shape shape : kLayerShapes) {
    for (const PositionClass position_class : kClasses) {
      for (const int rows : {1, 3, 19}) {
        expect_oracle(device, aligned_problem(rows, shape.in_features, shape.out_features,
                                              position_class, rows == 3));
      }
    }
  }
}

void gives_f32_logits(Device& device) {
  for (const PositionClass position_class : kClasses) {
    LinearProblem odd = linear_problem(9, 63, 65);
    odd.position_class = position_class;
    for (LinearProblem p : {odd, aligned_problem(9, 1024, 1000, position_class)}) {
      p.f32_out = true;
      expect_oracle(device, p);
    }
  }
}

void is_a_sequential_fma_for_every_number_of_rows(Device& device) {
  if (device.kind() != DeviceKind::cpu) return;  // CPU devices promise it
  for (const Shape shape : kShapes) {
    for (const int rows : {1, 2, 3, 5, 6, 7, 8, 13, 64, 97, 130}) {
      if (rows > 13 && shape.in_features > 2000) continue;
      const LinearProblem p =
          linear_problem(rows, shape.in_features, shape.out_features, rows % 2 == 1);
      expect_same_bits(run_linear(device, p), sequential_linear(p), p.name());
      if (testing::Test::HasFailure()) return;
    }
  }
}

// `count` rows of a problem from `first` on.
LinearProblem rows_of(const LinearProblem& all, int first, int count) {
  LinearProblem part = all;
  part.rows = count;
  part.x.assign(all.x.begin() + first * all.x_stride(),
                all.x.begin() + (first + count) * all.x_stride());
  part.out.assign(all.out.begin() + first * all.out_stride(),
                  all.out.begin() + (first + count) * all.out_stride());
  return part;
}

void expect_rows_alone_like_together(Device& device, const LinearProblem& all) {
  const std::vector<float> together = run_linear(device, all);
  int first = 0;
  for (const int count : {1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 128, 1}) {
    first = (first + 37) % (all.rows - count + 1);
    const std::vector<float> want(together.begin() + first * all.out_stride(),
                                  together.begin() + (first + count) * all.out_stride());
    expect_same_bits(
        run_linear(device, rows_of(all, first, count)), want,
        std::to_string(count) + " rows from " + std::to_string(first) + " of " + all.name());
    if (testing::Test::HasFailure()) return;
  }
}

void rows_do_not_depend_on_their_number(Device& device) {
  for (const PositionClass position_class : kClasses) {
    LinearProblem odd = linear_problem(130, 300, 100);
    odd.position_class = position_class;
    expect_rows_alone_like_together(device, odd);
    expect_rows_alone_like_together(device, aligned_problem(130, 1024, 640, position_class, true));
    if (device.kind() == DeviceKind::cpu) continue;  // one kernel for all shapes
    expect_rows_alone_like_together(device, aligned_problem(130, 2048, 1024, position_class));
    LinearProblem logits = aligned_problem(130, 128, 8216, position_class);
    logits.f32_out = true;
    expect_rows_alone_like_together(device, logits);
  }
}

void rows_keep_to_themselves(Device& device) {
  constexpr int kPoisoned[] = {1, 9, 18};
  for (const PositionClass position_class : kClasses) {
    const LinearProblem p = aligned_problem(19, 512, 136, position_class);
    LinearProblem poisoned = p;
    for (const int row : kPoisoned)
      std::fill_n(poisoned.x.begin() + row * p.x_stride(), p.x_stride(), kNan);
    const std::vector<float> want = run_linear(device, p), got = run_linear(device, poisoned);
    for (int row = 0; row < p.rows; ++row) {
      const auto row_of = [&](const std::vector<float>& all) {
        const auto begin = all.begin() + row * p.out_stride();
        return std::vector<float>(begin, begin + p.out_features);
      };
      if (std::ranges::find(kPoisoned, row) == std::end(kPoisoned)) {
        expect_same_bits(row_of(got), row_of(want),
                         "row " + std::to_string(row) + " of " + p.name());
      } else {
        for (const float value : row_of(got)) ASSERT_TRUE(std::isnan(value)) << "row " << row;
      }
    }
  }
}

// Rows beyond `rows` may be read and written, whatever is in them.
void padded_rows_change_nothing(Device& device) {
  constexpr int kPadded = 128;
  for (const PositionClass position_class : kClasses) {
    for (const int rows : {1, 100}) {
      const LinearProblem p = aligned_problem(rows, 256, 320, position_class, true);
      LinearProblem padded = p;
      padded.x.resize(static_cast<size_t>(kPadded * p.x_stride()), kNan);
      padded.out.resize(static_cast<size_t>(kPadded * p.out_stride()), kNan);
      std::vector<float> got = run_linear(device, padded, kPadded);
      got.resize(p.out.size());
      expect_same_bits(got, run_linear(device, p), p.name());
    }
  }
}

void replays_after_warm_up(Device& device) {
  if (!device.supports_graphs()) return;
  const auto stream = device.make_stream();
  const WarmUpShape shapes[] = {{768, 512, true, 1500}, {65, 63}, {1000, 1024, false}};
  device.ops().warm_up(*stream, shapes, 3);
  for (const PositionClass position_class : kClasses) {
    for (const bool accumulate : {false, true}) {
      const LinearProblem first = aligned_problem(21, 512, 768, position_class, accumulate);
      LinearProblem second = first;
      second.x = Random(5).floats(first.x.size());
      const DeviceArray<uint16_t> weight = packed_weight(device, first);
      const ActivationArray x(device, first.x), second_x(device, second.x);
      const ActivationArray out(device, first.out), fresh_out(device, first.out);
      const auto graph = device.capture(*stream, [&] {
        device.ops().linear(*stream, linear_args(first, x.data(), weight.data(), out.data()));
      });
      graph->launch(*stream);
      stream->synchronize();
      expect_same_bits(out.read(), run_linear(device, first), "captured, " + first.name());
      const size_t bytes = device.ops().activation_bytes();
      stream->copy(x.data(), second_x.data(), first.x.size() * bytes);
      stream->copy(out.data(), fresh_out.data(), first.out.size() * bytes);
      graph->launch(*stream);
      stream->synchronize();
      expect_same_bits(out.read(), run_linear(device, second), "replayed, " + first.name());
    }
  }
}

void no_rows_change_nothing(Device& device) {
  LinearProblem p = linear_problem(1, 16, 16);
  p.rows = 0;
  for (const PositionClass position_class : kClasses) {
    p.position_class = position_class;
    expect_same_bits(run_linear(device, p), as_activations(device, p.out), "no rows");
  }
}

constexpr KernelCase kCases[] = {
    {"LinearMatchesTheFp64Oracle", matches_the_fp64_oracle},
    {"LinearMatchesTheFp64OracleAtTheShapesOfLayers",
     matches_the_fp64_oracle_at_the_shapes_of_layers},
    {"LinearGivesF32Logits", gives_f32_logits},
    {"LinearIsASequentialFmaForEveryNumberOfRows", is_a_sequential_fma_for_every_number_of_rows},
    {"LinearRowsDoNotDependOnTheirNumber", rows_do_not_depend_on_their_number},
    {"LinearRowsKeepToThemselves", rows_keep_to_themselves},
    {"LinearPaddedRowsChangeNothing", padded_rows_change_nothing},
    {"LinearReplaysAfterWarmUp", replays_after_warm_up},
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
