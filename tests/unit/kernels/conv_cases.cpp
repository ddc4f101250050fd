#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"
#include "tests/unit/kernels/sequence_steps.h"

namespace convoy::test {
namespace {

struct ConvProblem {
  int channels;
  std::vector<int> lengths;
  std::vector<std::vector<float>> u;      // per lane [length, channels]
  std::vector<std::vector<float>> start;  // per lane [3, channels]; empty: the start of a sequence
  std::vector<float> weight;
};

ConvProblem conv_problem(Device& device, int channels, std::vector<int> lengths) {
  Random random(static_cast<uint32_t>(channels + static_cast<int>(lengths.size())));
  ConvProblem p{channels, std::move(lengths), {}, {}, {}};
  const auto row = static_cast<size_t>(channels);
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    p.u.push_back(as_activations(
        device, random.floats(static_cast<size_t>(p.lengths[lane]) * row, -2.0F, 2.0F)));
    p.start.push_back(lane % 2 == 0 ? std::vector<float>{} : random.floats(3 * row));
  }
  p.weight = random.floats(row * 4);
  return p;
}

struct ConvResult {
  std::vector<std::vector<float>> out;    // per lane [length, channels]
  std::vector<std::vector<float>> state;  // per lane [3, channels]
};

// Lane l has the slots 2l and 2l+1 and writes them in turn; the slot after the last belongs to
// nobody.
ConvResult run_conv(Device& device, const ConvProblem& p, const std::vector<int>& widths) {
  const auto row = static_cast<size_t>(p.channels);
  const size_t lanes = p.lengths.size();
  std::vector<float> slots((2 * lanes + 1) * 3 * row, kUntouched);
  std::vector<int> current(lanes);
  for (size_t lane = 0; lane < lanes; ++lane) {
    current[lane] = p.start[lane].empty() ? -1 : static_cast<int>(2 * lane);
    std::copy(p.start[lane].begin(), p.start[lane].end(),
              slots.begin() + static_cast<ptrdiff_t>(2 * lane * 3 * row));
  }
  const DeviceArray<float> state(device, slots);
  const DeviceArray<float> weight(device, p.weight);
  const auto stream = device.make_stream();
  ConvResult result;
  result.out.resize(lanes);
  for (const SequenceStep& step : cut_into_steps(p.lengths, widths)) {
    std::vector<int> next(lanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      // Every third step in place, else the other slot.
      next[lane] = static_cast<int>(2 * lane) +
                   (current[lane] < 0 ? 0 : (current[lane] + (step.index % 3 == 2 ? 0 : 1)) % 2);
    }
    const DeviceArray<ControlRow> control(device, control_rows(step, current, next));
    const ActivationArray u(device, gather_columns(step, p.u, row, kNan));
    const ActivationArray out =
        output_activations(device, lanes * static_cast<size_t>(step.width) * row);
    const std::vector<float> before = state.read();
    CausalConvArgs args;
    args.step = {control.data(), static_cast<int>(lanes), step.width, PositionClass::prompt};
    args.u = u.data();
    args.u_column_stride = p.channels;
    args.weight = weight.data();
    args.state = state.data();
    args.channels = p.channels;
    args.out = out.data();
    device.ops().causal_conv(*stream, args);
    stream->synchronize();
    scatter_columns(step, out.read(), row, result.out);
    const std::vector<float> after = state.read();
    for (size_t lane = 0; lane < lanes; ++lane) {
      const auto slot = static_cast<ptrdiff_t>(3 * row) * next[lane];
      if (step.valid[lane] == 0) {
        expect_same_bits(
            std::vector<float>(after.begin() + slot,
                               after.begin() + slot + static_cast<ptrdiff_t>(3 * row)),
            std::vector<float>(before.begin() + slot,
                               before.begin() + slot + static_cast<ptrdiff_t>(3 * row)),
            "state of dead lane " + std::to_string(lane));
      } else {
        current[lane] = next[lane];
      }
    }
  }
  const std::vector<float> after = state.read();
  for (size_t i = 2 * lanes * 3 * row; i < after.size(); ++i) EXPECT_EQ(after[i], kUntouched);
  for (size_t lane = 0; lane < lanes; ++lane) {
    const float* slot = after.data() + static_cast<size_t>(std::max(current[lane], 0)) * 3 * row;
    result.state.emplace_back(slot, slot + 3 * row);
  }
  return result;
}

void matches_the_fp64_oracle(Device& device) {
  for (const int channels : {16, 50, 96, 1032}) {
    const ConvProblem p = conv_problem(device, channels, {1, 2, 3, 9, 20});
    const auto row = static_cast<size_t>(channels);
    const ConvResult got = run_conv(device, p, {4});
    for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
      std::vector<float> inputs =
          p.start[lane].empty() ? std::vector<float>(3 * row, 0.0F) : p.start[lane];
      inputs.insert(inputs.end(), p.u[lane].begin(), p.u[lane].end());
      Doubles want;
      for (int t = 0; t < p.lengths[lane]; ++t) {
        for (size_t c = 0; c < row; ++c) {
          double sum = 0;
          for (size_t j = 0; j < 4; ++j)
            sum += static_cast<double>(p.weight[c * 4 + j]) *
                   inputs[(static_cast<size_t>(t) + j) * row + c];
          want.push_back(oracle_silu(sum));
        }
      }
      expect_close(got.out[lane], want, tolerance(device, 2e-6), 0.1,
                   "lane " + std::to_string(lane));
      expect_same_bits(
          got.state[lane],
          std::vector<float>(inputs.end() - static_cast<ptrdiff_t>(3 * row), inputs.end()),
          "state of lane " + std::to_string(lane));
    }
  }
}

void a_cut_at_every_position_changes_no_bit(Device& device) {
  for (const int channels : {40, 41}) {
    const ConvProblem p = conv_problem(device, channels, {35, 35});
    const ConvResult whole = run_conv(device, p, {35});
    for (int cut = 1; cut <= 34; ++cut) {
      const ConvResult parts = run_conv(device, p, {cut, 35 - cut});
      for (size_t lane = 0; lane < 2; ++lane) {
        expect_same_bits(parts.out[lane], whole.out[lane], "cut at " + std::to_string(cut));
        expect_same_bits(parts.state[lane], whole.state[lane],
                         "state, cut at " + std::to_string(cut));
      }
    }
  }
}

constexpr KernelCase kCases[] = {
    {"CausalConvMatchesTheFp64Oracle", matches_the_fp64_oracle},
    {"CausalConvCutAtEveryPositionChangesNoBit", a_cut_at_every_position_changes_no_bit},
};

}  // namespace

std::span<const KernelCase> conv_cases() {
  return kCases;
}

std::vector<NamedResult> conv_results(Device& device) {
  const ConvResult result = run_conv(device, conv_problem(device, 1000, {200, 64, 7}), {128});
  return {{"causal_conv", result.out[0]}, {"causal_conv state", result.state[2]}};
}

}  // namespace convoy::test
