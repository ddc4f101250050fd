#include <string>

#include "kernels/ops/scratch.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"
#include "tests/unit/kernels/sequence_steps.h"

namespace convoy::test {
namespace {

struct GdnProblem {
  int key_heads, value_heads, key_dim, value_dim;
  std::vector<int> lengths;
  std::vector<std::vector<float>> qkv, g, beta;
  std::vector<std::vector<float>>
      start;  // per lane [value_heads, key_dim, value_dim]; empty: the zero state
  size_t row() const {
    return static_cast<size_t>(2 * key_heads * key_dim + value_heads * value_dim);
  }
  size_t out_row() const { return static_cast<size_t>(value_heads * value_dim); }
  size_t state_size() const { return static_cast<size_t>(value_heads * key_dim * value_dim); }
};

GdnProblem gdn_problem(Device& device, int key_heads, int ratio, int key_dim, int value_dim,
                       std::vector<int> lengths, float least_g = -0.3F) {
  Random random(static_cast<uint32_t>(key_heads * 1000 + ratio * 100 + key_dim + lengths[0]));
  GdnProblem p{key_heads, key_heads * ratio, key_dim, value_dim, std::move(lengths), {}, {}, {},
               {}};
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    const auto tokens = static_cast<size_t>(p.lengths[lane]);
    const auto heads = static_cast<size_t>(p.value_heads);
    p.qkv.push_back(as_activations(device, random.floats(tokens * p.row(), -1.0F, 1.5F)));
    p.g.push_back(random.floats(tokens * heads, least_g, 0.0F));
    // Some heads forget nearly everything at once: exponentials above the diagonal overflow.
    for (size_t i = lane; i < p.g[lane].size() && i < 2000; i += 37) p.g[lane][i] = -20.0F;
    p.beta.push_back(random.floats(tokens * heads, 0.0F, 1.0F));
    p.start.push_back(lane % 2 == 0 ? random.floats(p.state_size()) : std::vector<float>{});
  }
  return p;
}

struct GdnResult {
  std::vector<std::vector<float>> out;    // per lane [length, value_heads * value_dim]
  std::vector<std::vector<float>> state;  // per lane
};

// Lane l has the slots 2l and 2l+1 and writes them in turn, or one in place; the last slot belongs
// to nobody.
GdnResult run_gdn(Device& device, const GdnProblem& p, const std::vector<int>& widths, bool chunked,
                  bool in_place = false) {
  const size_t lanes = p.lengths.size();
  const auto size = static_cast<ptrdiff_t>(p.state_size());
  std::vector<float> slots((2 * lanes + 1) * p.state_size(), kUntouched);
  std::vector<int> current(lanes);
  for (size_t lane = 0; lane < lanes; ++lane) {
    current[lane] = p.start[lane].empty() ? -1 : static_cast<int>(2 * lane);
    std::copy(p.start[lane].begin(), p.start[lane].end(),
              slots.begin() + static_cast<ptrdiff_t>(2 * lane) * size);
  }
  const DeviceArray<float> state(device, slots);
  const auto stream = device.make_stream();
  GdnResult result;
  result.out.resize(lanes);
  for (const SequenceStep& step : cut_into_steps(p.lengths, widths)) {
    std::vector<int> next(lanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const int offset = current[lane] < 0 ? 0 : (current[lane] + (in_place ? 0 : 1)) % 2;
      next[lane] = static_cast<int>(2 * lane) + offset;
    }
    const auto heads = static_cast<size_t>(p.value_heads);
    const DeviceArray<ControlRow> control(device, control_rows(step, current, next));
    const ActivationArray qkv(device, gather_columns(step, p.qkv, p.row(), kNan));
    const DeviceArray<float> g(device, gather_columns(step, p.g, heads, kNan));
    const DeviceArray<float> beta(device, gather_columns(step, p.beta, heads, kNan));
    const ActivationArray out =
        output_activations(device, lanes * static_cast<size_t>(step.width) * p.out_row());
    const DeviceArray<unsigned char> scratch(
        device, std::vector<unsigned char>(gdn_scratch_bytes(
                    device.kind(), {p.key_heads, p.value_heads, p.key_dim, p.value_dim},
                    static_cast<int>(lanes), static_cast<int>(lanes) * step.width)));
    GdnArgs args;
    args.step = {control.data(), static_cast<int>(lanes), step.width,
                 chunked ? PositionClass::prompt : PositionClass::generated};
    args.qkv = qkv.data();
    args.g = g.data();
    args.beta = beta.data();
    args.state = state.data();
    args.key_heads = p.key_heads;
    args.value_heads = p.value_heads;
    args.key_dim = p.key_dim;
    args.value_dim = p.value_dim;
    args.out = out.data();
    args.scratch = scratch.data();
    const std::vector<float> before = state.read();
    if (chunked) {
      device.ops().gdn_chunk(*stream, args);
    } else {
      device.ops().gdn_recurrent(*stream, args);
    }
    stream->synchronize();
    qkv.read();
    scratch.read();
    scatter_columns(step, out.read(), p.out_row(), result.out);
    const std::vector<float> after = state.read();
    for (int slot = 0; slot <= static_cast<int>(2 * lanes); ++slot) {
      const bool written = slot < static_cast<int>(2 * lanes) &&
                           step.valid[static_cast<size_t>(slot / 2)] > 0 &&
                           next[static_cast<size_t>(slot / 2)] == slot;
      if (written) continue;
      expect_same_bits(
          std::vector<float>(after.begin() + slot * size, after.begin() + (slot + 1) * size),
          std::vector<float>(before.begin() + slot * size, before.begin() + (slot + 1) * size),
          "state slot " + std::to_string(slot) + ", which this step does not write");
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (step.valid[lane] > 0) current[lane] = next[lane];
    }
  }
  const std::vector<float> last = state.read();
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (current[lane] < 0) {
      result.state.emplace_back(p.state_size(), 0.0F);
      continue;
    }
    const auto from = last.begin() + current[lane] * size;
    result.state.emplace_back(from, from + size);
  }
  return result;
}

// Relative to the size of a typical value: o is a sum whose terms cancel.
struct GdnTolerance {
  double out, state;
};
// The chunked form on bf16 tensor cores keeps 16 bits of what it multiplies.
GdnTolerance gdn_tolerance(Device& device, bool chunked = false) {
  const bool split = chunked && has_bf16_activations(device);
  return {tolerance(device, 1e-5, split ? 1e-4 : 0), split ? 1e-4 : 1e-5};
}

// Compares every `head_step`-th value head.
void expect_oracle(const GdnProblem& p, const GdnResult& got, const GdnTolerance& tolerance,
                   const std::string& what, int head_step = 1) {
  const auto width = static_cast<size_t>(p.value_dim);
  const size_t head_state = static_cast<size_t>(p.key_dim) * width;
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    // Heads that are not computed anew are taken to be right.
    Doubles state(got.state[lane].begin(), got.state[lane].end());
    Doubles out(got.out[lane].begin(), got.out[lane].end());
    for (int head = 0; head < p.value_heads; head += head_step) {
      const auto h = static_cast<size_t>(head);
      const auto at = static_cast<ptrdiff_t>(h * head_state);
      Doubles s(head_state, 0.0);
      if (!p.start[lane].empty()) std::copy_n(p.start[lane].begin() + at, head_state, s.begin());
      const int key_head = head / (p.value_heads / p.key_heads);
      for (size_t t = 0; t < static_cast<size_t>(p.lengths[lane]); ++t) {
        const float* row = p.qkv[lane].data() + t * p.row();
        const int keys = p.key_heads * p.key_dim;
        const Doubles q =
            oracle_unit(row + key_head * p.key_dim, p.key_dim, 1.0 / std::sqrt(p.key_dim));
        const Doubles k = oracle_unit(row + keys + key_head * p.key_dim, p.key_dim, 1.0);
        const size_t gate = t * static_cast<size_t>(p.value_heads) + h;
        const Doubles o = oracle_delta_rule(q, k, row + 2 * keys + head * p.value_dim,
                                            p.g[lane][gate], p.beta[lane][gate], p.value_dim, s);
        std::copy(o.begin(), o.end(),
                  out.begin() + static_cast<ptrdiff_t>(t * p.out_row() + h * width));
      }
      std::copy(s.begin(), s.end(), state.begin() + at);
    }
    const std::string where = what + ", lane " + std::to_string(lane);
    expect_close(got.out[lane], out, tolerance.out, 0.1, where + ", outputs");
    expect_close(got.state[lane], state, tolerance.state, 0.3, where + ", state");
  }
}

void recurrent_matches_the_fp64_oracle(Device& device) {
  const GdnTolerance tolerance = gdn_tolerance(device);
  for (const int ratio : {1, 2, 3, 4}) {
    const GdnProblem p = gdn_problem(device, 2, ratio, 64, 64, {9, 1, 4});
    expect_oracle(p, run_gdn(device, p, {1}, false), tolerance, "ratio " + std::to_string(ratio));
    expect_oracle(p, run_gdn(device, p, {4, 3}, false, true), tolerance,
                  "in place, ratio " + std::to_string(ratio));
  }
  const GdnProblem odd = gdn_problem(device, 1, 2, 48, 80, {20});
  expect_oracle(odd, run_gdn(device, odd, {7}, false), tolerance, "48 x 80");
  const GdnProblem small = gdn_problem(device, 2, 1, 16, 16, {20, 3});
  expect_oracle(small, run_gdn(device, small, {7}, false), tolerance, "16 x 16");
}

void recurrent_bits_do_not_depend_on_the_width(Device& device) {
  const GdnProblem p = gdn_problem(device, 2, 2, 64, 64, {17, 11});
  const GdnResult one = run_gdn(device, p, {1}, false);
  for (const int width : {2, 5, 17}) {
    const GdnResult wide = run_gdn(device, p, {width}, false);
    for (size_t lane = 0; lane < 2; ++lane) {
      expect_same_bits(wide.out[lane], one.out[lane], "width " + std::to_string(width));
      expect_same_bits(wide.state[lane], one.state[lane], "state, width " + std::to_string(width));
    }
  }
}

void chunk_matches_the_fp64_sequential_oracle(Device& device) {
  const GdnTolerance tolerance = gdn_tolerance(device, true);
  for (const int tokens : {1, 2, 3, 63, 64, 65, 127, 300}) {
    const GdnProblem p = gdn_problem(device, 1, 2, 128, 128, {tokens});
    expect_oracle(p, run_gdn(device, p, {320}, true), tolerance,
                  std::to_string(tokens) + " tokens");
    if (testing::Test::HasFailure()) return;
  }
  for (const int ratio : {1, 3, 4}) {
    const GdnProblem p = gdn_problem(device, 2, ratio, 128, 128, {70, 0, 100});
    expect_oracle(p, run_gdn(device, p, {64}, true), tolerance, "ratio " + std::to_string(ratio));
  }
  const GdnProblem lanes = gdn_problem(device, 2, 3, 64, 64, {100, 64, 1, 0, 130});
  expect_oracle(lanes, run_gdn(device, lanes, {64}, true), tolerance, "lanes");
  const GdnProblem odd = gdn_problem(device, 1, 4, 48, 80, {90});
  expect_oracle(odd, run_gdn(device, odd, {128}, true, true), tolerance, "48 x 80");
  const GdnProblem wide = gdn_problem(device, 1, 1, 256, 16, {70});
  expect_oracle(wide, run_gdn(device, wide, {128}, true, true), tolerance, "256 x 16");
}

void chunk_of_a_large_model_matches_the_oracle(Device& device) {
  if (device.kind() == DeviceKind::cpu) GTEST_SKIP() << "CPU devices do the same for any shape";
  const GdnProblem p = gdn_problem(device, 16, 3, 128, 128, {300});
  expect_oracle(p, run_gdn(device, p, {512}, true), gdn_tolerance(device, true), "300 tokens", 7);
}

// What is rounded on the way must not add up in the state.
void chunk_error_does_not_grow_with_the_length(Device& device) {
  const GdnProblem p = gdn_problem(device, 1, 2, 128, 128, {3000}, -0.002F);
  expect_oracle(p, run_gdn(device, p, {1024}, true), gdn_tolerance(device, true), "3000 tokens");
}

void chunk_cuts_change_no_bit(Device& device) {
  for (const int key_dim : {64, 128}) {
    const GdnProblem p = gdn_problem(device, 1, 2, key_dim, 128, {500, 193});
    const GdnResult whole = run_gdn(device, p, {512}, true);
    for (const std::vector<int>& widths :
         std::vector<std::vector<int>>{{64}, {128}, {192}, {256}, {64, 192}}) {
      const GdnResult parts = run_gdn(device, p, widths, true, widths[0] == 128);
      for (size_t lane = 0; lane < 2; ++lane) {
        expect_same_bits(parts.out[lane], whole.out[lane],
                         "chunks of " + std::to_string(widths[0]));
        expect_same_bits(parts.state[lane], whole.state[lane],
                         "state, chunks of " + std::to_string(widths[0]));
      }
    }
  }
}

void chunk_is_close_to_recurrent(Device& device) {
  const GdnTolerance tolerance = gdn_tolerance(device, true);
  const GdnProblem p = gdn_problem(device, 2, 2, 128, 128, {150});
  const GdnResult chunked = run_gdn(device, p, {192}, true);
  const GdnResult recurrent = run_gdn(device, p, {150}, false);
  expect_close(chunked.out[0], Doubles(recurrent.out[0].begin(), recurrent.out[0].end()),
               2 * tolerance.out, 0.1, "outputs");
  expect_close(chunked.state[0], Doubles(recurrent.state[0].begin(), recurrent.state[0].end()),
               2 * tolerance.state, 0.3, "state");
}

void chunk_off_the_grid_is_refused(Device& device) {
  if (device.kind() != DeviceKind::cpu)
    GTEST_SKIP() << "control rows lie in device memory: no check on the host";
  const DeviceArray<ControlRow> control(device, {ControlRow{65, {65, 65, 65}, 0, 1, -1, 0}});
  const DeviceArray<float> memory(device, std::vector<float>(3 * 16 + 2 + 256));
  GdnArgs args;
  args.step = {control.data(), 1, 1, PositionClass::prompt};
  args.qkv = args.state = memory.data();
  args.out = memory.data();
  args.g = args.beta = memory.data();
  args.key_heads = args.value_heads = 1;
  args.key_dim = args.value_dim = 16;
  const auto stream = device.make_stream();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the device may have threads
  EXPECT_DEATH(device.ops().gdn_chunk(*stream, args),
               "cache_position % kPageTokens == 0 \\(1 vs 0\\)");
}

constexpr KernelCase kCases[] = {
    {"GdnRecurrentMatchesTheFp64Oracle", recurrent_matches_the_fp64_oracle},
    {"GdnRecurrentBitsDoNotDependOnTheWidth", recurrent_bits_do_not_depend_on_the_width},
    {"GdnChunkMatchesTheFp64SequentialOracle", chunk_matches_the_fp64_sequential_oracle},
    {"GdnChunkOfALargeModelMatchesTheOracle", chunk_of_a_large_model_matches_the_oracle},
    {"GdnChunkErrorDoesNotGrowWithTheLength", chunk_error_does_not_grow_with_the_length},
    {"GdnChunkCutsChangeNoBit", chunk_cuts_change_no_bit},
    {"GdnChunkIsCloseToRecurrent", chunk_is_close_to_recurrent},
    {"GdnChunkOffTheGridIsRefused", chunk_off_the_grid_is_refused},
};

}  // namespace

std::span<const KernelCase> gdn_cases() {
  return kCases;
}

std::vector<NamedResult> gdn_results(Device& device) {
  const GdnProblem p = gdn_problem(device, 2, 3, 128, 128, {140});
  const GdnResult chunked = run_gdn(device, p, {192}, true);
  const GdnResult recurrent = run_gdn(device, p, {16}, false);
  return {{"gdn_chunk", chunked.out[0]},
          {"gdn_chunk state", chunked.state[0]},
          {"gdn_recurrent", recurrent.out[0]},
          {"gdn_recurrent state", recurrent.state[0]}};
}

}  // namespace convoy::test
