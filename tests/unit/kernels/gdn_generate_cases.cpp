// The whole GDN mixer of generated positions.
#include <algorithm>
#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"
#include "tests/unit/kernels/sequence_steps.h"

namespace convoy::test {
namespace {

struct MixerProblem {
  int key_heads, value_heads, key_dim, value_dim;
  std::vector<int> lengths;
  std::vector<std::vector<float>> projection;         // per lane [length, row]
  std::vector<std::vector<float>> start, conv_start;  // per lane; empty: the start of a sequence
  std::vector<float> conv_weight, a_log, dt_bias, norm;

  size_t values() const { return static_cast<size_t>(value_heads * value_dim); }
  size_t keys() const { return static_cast<size_t>(key_heads * key_dim); }
  size_t channels() const { return 2 * keys() + values(); }
  // Rows lie further apart than they are long.
  size_t row() const { return channels() + values() + 2 * static_cast<size_t>(value_heads) + 5; }
  size_t state_size() const { return values() * static_cast<size_t>(key_dim); }
};

MixerProblem mixer_problem(Device& device, int key_heads, int ratio, int dim,
                           std::vector<int> lengths) {
  Random random(static_cast<uint32_t>(key_heads * 100 + ratio * 10 + dim + lengths[0]));
  MixerProblem p{key_heads, key_heads * ratio, dim, dim, std::move(lengths), {}, {}, {}, {}, {}, {},
                 {}};
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    const auto tokens = static_cast<size_t>(p.lengths[lane]);
    p.projection.push_back(as_activations(device, random.floats(tokens * p.row(), -2.0F, 2.0F)));
    const bool fresh = lane % 3 == 1;
    p.start.push_back(fresh ? std::vector<float>{} : random.floats(p.state_size()));
    p.conv_start.push_back(fresh ? std::vector<float>{} : random.floats(3 * p.channels()));
  }
  const auto heads = static_cast<size_t>(p.value_heads);
  p.conv_weight = random.floats(p.channels() * 4);
  p.a_log = random.floats(heads, -3.0F, 1.0F);
  p.dt_bias = random.floats(heads, -3.0F, 1.0F);
  p.norm = random.floats(static_cast<size_t>(dim), 0.5F, 1.5F);
  return p;
}

// One lane of a problem as a problem of its own.
MixerProblem only_lane(const MixerProblem& p, size_t lane) {
  MixerProblem one = p;
  one.lengths = {p.lengths[lane]};
  one.projection = {p.projection[lane]};
  one.start = {p.start[lane]};
  one.conv_start = {p.conv_start[lane]};
  return one;
}

struct MixerResult {
  std::vector<std::vector<float>> out, state, conv;  // per lane
};

// The slots of both states. Lane l has 2l and 2l+1 and writes them in turn, or one in place; the
// last slot belongs to nobody.
struct MixerSlots {
  DeviceArray<float> state, conv;
  std::vector<int> current;
};

std::vector<float> slots_of(const std::vector<std::vector<float>>& start, size_t size) {
  std::vector<float> slots((2 * start.size() + 1) * size, kUntouched);
  for (size_t lane = 0; lane < start.size(); ++lane) {
    std::copy(start[lane].begin(), start[lane].end(),
              slots.begin() + static_cast<ptrdiff_t>(2 * lane * size));
  }
  return slots;
}

MixerSlots mixer_slots(Device& device, const MixerProblem& p) {
  MixerSlots slots{{device, slots_of(p.start, p.state_size())},
                   {device, slots_of(p.conv_start, 3 * p.channels())},
                   {}};
  for (size_t lane = 0; lane < p.lengths.size(); ++lane)
    slots.current.push_back(p.start[lane].empty() ? -1 : static_cast<int>(2 * lane));
  return slots;
}

void expect_other_slots_untouched(const std::vector<float>& before, const std::vector<float>& after,
                                  size_t size, const std::vector<int>& written,
                                  const std::string& what) {
  for (size_t slot = 0; slot * size < before.size(); ++slot) {
    if (std::find(written.begin(), written.end(), static_cast<int>(slot)) != written.end())
      continue;
    if (std::memcmp(before.data() + slot * size, after.data() + slot * size,
                    size * sizeof(float)) == 0)
      continue;
    const auto from = static_cast<ptrdiff_t>(slot * size), to = from + static_cast<ptrdiff_t>(size);
    expect_same_bits(std::vector<float>(after.begin() + from, after.begin() + to),
                     std::vector<float>(before.begin() + from, before.begin() + to),
                     what + " slot " + std::to_string(slot) + ", which this step does not write");
  }
}

enum class Slots { in_place, in_turn };

// Runs one step and returns its outputs.
std::vector<float> run_step(Device& device, Stream& stream, const MixerProblem& p,
                            const SequenceStep& step, MixerSlots& slots, Slots use, bool captured) {
  const size_t lanes = p.lengths.size();
  std::vector<int> next(lanes), written;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const int now = slots.current[lane];
    const int offset = now < 0 ? 0 : (now + (use == Slots::in_place ? 0 : 1)) % 2;
    next[lane] = static_cast<int>(2 * lane) + offset;
    if (step.valid[lane] > 0) written.push_back(next[lane]);
  }
  const size_t columns = lanes * static_cast<size_t>(step.width);
  const DeviceArray<ControlRow> control(device, control_rows(step, slots.current, next));
  // Dead columns may reach the gated norm, which multiplies their zeros by silu(z).
  const ActivationArray projection(device, gather_columns(step, p.projection, p.row(), 3.0F));
  const DeviceArray<float> conv_weight(device, p.conv_weight), a_log(device, p.a_log),
      dt_bias(device, p.dt_bias), norm(device, p.norm);
  const ActivationArray mixed = output_activations(device, columns * p.channels());
  const DeviceArray<float> gates =
      output_array(device, 2 * columns * static_cast<size_t>(p.value_heads));
  const ActivationArray out = output_activations(device, columns * p.values());
  const std::vector<float> state_before = slots.state.read(), conv_before = slots.conv.read();
  const auto run = [&] {
    device.ops().gdn_generate(stream, {.step = {control.data(), static_cast<int>(lanes), step.width,
                                                PositionClass::generated},
                                       .projection = projection.data(),
                                       .column_stride = static_cast<ptrdiff_t>(p.row()),
                                       .conv_weight = conv_weight.data(),
                                       .conv_state = slots.conv.data(),
                                       .a_log = a_log.data(),
                                       .dt_bias = dt_bias.data(),
                                       .norm = norm.data(),
                                       .state = slots.state.data(),
                                       .key_heads = p.key_heads,
                                       .value_heads = p.value_heads,
                                       .key_dim = p.key_dim,
                                       .value_dim = p.value_dim,
                                       .mixed = mixed.data(),
                                       .gates = gates.data(),
                                       .out = out.data()});
  };
  if (captured) {
    device.capture(stream, run)->launch(stream);
    stream.synchronize();  // before the graph goes
  } else {
    run();
    stream.synchronize();
  }
  mixed.read(), gates.read(), projection.read();
  expect_other_slots_untouched(state_before, slots.state.read(), p.state_size(), written, "state");
  expect_other_slots_untouched(conv_before, slots.conv.read(), 3 * p.channels(), written, "conv");
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (step.valid[lane] > 0) slots.current[lane] = next[lane];
  }
  return out.read();
}

MixerResult run_mixer(Device& device, const MixerProblem& p, const std::vector<int>& widths,
                      Slots use = Slots::in_turn, bool captured = false) {
  const auto stream = device.make_stream();
  MixerSlots slots = mixer_slots(device, p);
  MixerResult result;
  result.out.resize(p.lengths.size());
  for (const SequenceStep& step : cut_into_steps(p.lengths, widths)) {
    scatter_columns(step, run_step(device, *stream, p, step, slots, use, captured), p.values(),
                    result.out);
  }
  const std::vector<float> state = slots.state.read(), conv = slots.conv.read();
  const auto slot = [](const std::vector<float>& slots_read, int index, size_t size) {
    if (index < 0) return std::vector<float>(size, 0.0F);
    const auto from = slots_read.begin() + index * static_cast<ptrdiff_t>(size);
    return std::vector<float>(from, from + static_cast<ptrdiff_t>(size));
  };
  for (const int current : slots.current) {
    result.state.push_back(slot(state, current, p.state_size()));
    result.conv.push_back(slot(conv, current, 3 * p.channels()));
  }
  return result;
}

void expect_same(const MixerResult& got, const MixerResult& want, const std::string& what) {
  for (size_t lane = 0; lane < want.out.size(); ++lane) {
    const std::string where = what + ", lane " + std::to_string(lane);
    expect_same_bits(got.out[lane], want.out[lane], where);
    expect_same_bits(got.state[lane], want.state[lane], where + ", state");
    expect_same_bits(got.conv[lane], want.conv[lane], where + ", conv state");
  }
}

// The convolved rows of a lane, and its last three raw inputs.
Doubles oracle_conv(const MixerProblem& p, size_t lane, std::vector<float>& last) {
  const size_t channels = p.channels();
  std::vector<float> inputs = p.conv_start[lane];
  inputs.resize(3 * channels);
  for (size_t t = 0; t < static_cast<size_t>(p.lengths[lane]); ++t) {
    const float* row = p.projection[lane].data() + t * p.row();
    inputs.insert(inputs.end(), row, row + channels);
  }
  Doubles convolved;
  for (size_t i = 0; i + 3 * channels < inputs.size(); ++i) {
    double sum = 0;
    for (size_t tap = 0; tap < 4; ++tap) {
      sum += static_cast<double>(p.conv_weight[i % channels * 4 + tap]) *
             static_cast<double>(inputs[i + tap * channels]);
    }
    convolved.push_back(oracle_silu(sum));
  }
  last.assign(inputs.end() - static_cast<ptrdiff_t>(3 * channels), inputs.end());
  return convolved;
}

Doubles unit(const double* x, int size, double factor) {
  double squares = 0;
  for (int i = 0; i < size; ++i) squares += x[i] * x[i];
  Doubles y;
  for (int i = 0; i < size; ++i) y.push_back(x[i] / std::sqrt(squares + 1e-6) * factor);
  return y;
}

// One value head of a lane: outputs go to `out` [length, values], its state to `state`.
void oracle_head(const MixerProblem& p, size_t lane, int head, const Doubles& convolved,
                 Doubles& out, Doubles& state) {
  const auto h = static_cast<size_t>(head);
  const auto dim = static_cast<size_t>(p.value_dim);
  const size_t head_state = static_cast<size_t>(p.key_dim) * dim;
  const auto key_head = static_cast<size_t>(head / (p.value_heads / p.key_heads));
  Doubles s(head_state, 0.0);
  if (!p.start[lane].empty())
    std::copy_n(p.start[lane].begin() + static_cast<ptrdiff_t>(h * head_state), head_state,
                s.begin());
  for (size_t t = 0; t < static_cast<size_t>(p.lengths[lane]); ++t) {
    const double* row = convolved.data() + t * p.channels();
    const double* key = row + key_head * static_cast<size_t>(p.key_dim);
    const Doubles q = unit(key, p.key_dim, 1.0 / std::sqrt(p.key_dim));
    const Doubles k = unit(key + p.keys(), p.key_dim, 1.0);
    const float* z = p.projection[lane].data() + t * p.row() + p.channels();
    const float* b = z + p.values();
    const double x = static_cast<double>(b[static_cast<size_t>(p.value_heads) + h]) +
                     static_cast<double>(p.dt_bias[h]);
    const double g = -std::exp(static_cast<double>(p.a_log[h])) * std::log1p(std::exp(x));
    std::vector<float> v;  // the oracle of the rule takes f32 values
    for (size_t j = 0; j < dim; ++j)
      v.push_back(static_cast<float>(row[2 * p.keys() + h * dim + j]));
    const Doubles o = oracle_delta_rule(q, k, v.data(), g, oracle_sigmoid(b[h]), p.value_dim, s);
    double squares = 0;
    for (const double value : o) squares += value * value;
    for (size_t j = 0; j < dim; ++j) {
      out[t * p.values() + h * dim + j] = o[j] / std::sqrt(squares / p.value_dim + 1e-6) *
                                          static_cast<double>(p.norm[j]) *
                                          oracle_silu(z[h * dim + j]);
    }
  }
  std::copy(s.begin(), s.end(), state.begin() + static_cast<ptrdiff_t>(h * head_state));
}

// Cards have one kernel for the whole mixer from compute capability 9.0 on, for sizes that fit it.
bool is_fused(Device& device, bool fits) {
  return fits && std::stoi(device.info().architecture.substr(3)) >= 90;  // "sm_90"
}

void expect_oracle(Device& device, const MixerProblem& p, const MixerResult& got, bool fits,
                   const std::string& what) {
  // Devices with bf16 activations round between the parts where they have no fused kernel, and the
  // norm of a small read-out makes that error large.
  const bool rounded = has_bf16_activations(device) && !is_fused(device, fits);
  const double between = rounded ? 0x1p-6 : 0, scale = rounded ? 1.0 : 0.1;
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    std::vector<float> last;
    const Doubles convolved = oracle_conv(p, lane, last);
    Doubles out(static_cast<size_t>(p.lengths[lane]) * p.values());
    Doubles state(p.state_size());
    for (int head = 0; head < p.value_heads; ++head)
      oracle_head(p, lane, head, convolved, out, state);
    const std::string where = what + ", lane " + std::to_string(lane);
    expect_close(got.out[lane], out, tolerance(device, 1e-4, between), scale, where + ", outputs");
    expect_close(got.state[lane], state, 1e-5 + between, 0.3, where + ", state");
    if (p.lengths[lane] > 0) expect_same_bits(got.conv[lane], last, where + ", conv state");
  }
}

void generate_matches_the_fp64_oracle(Device& device) {
  for (const int ratio : {1, 2, 3, 4}) {
    const MixerProblem p = mixer_problem(device, 2, ratio, 128, {7, 1, 3, 0, 12});
    const std::string what = "ratio " + std::to_string(ratio);
    expect_oracle(device, p, run_mixer(device, p, {1}), true, what);
    expect_oracle(device, p, run_mixer(device, p, {5, 2}, Slots::in_place), true,
                  "in place, " + what);
    if (testing::Test::HasFailure()) return;
  }
  const MixerProblem wide = mixer_problem(device, 1, 3, 128, {64, 63});
  expect_oracle(device, wide, run_mixer(device, wide, {64}), true, "64 columns");
}

void generate_of_other_sizes_matches_the_fp64_oracle(Device& device) {
  for (const int dim : {16, 48, 64}) {
    const MixerProblem p = mixer_problem(device, 2, 2, dim, {5, 2});
    expect_oracle(device, p, run_mixer(device, p, {3}), false, "size " + std::to_string(dim));
  }
  const MixerProblem many = mixer_problem(device, 1, 6, 128, {5, 2});
  expect_oracle(device, many, run_mixer(device, many, {3}), false, "6 value heads per key head");
}

void generate_bits_depend_neither_on_width_nor_on_slots(Device& device) {
  const MixerProblem p = mixer_problem(device, 2, 3, 128, {19, 7});
  const MixerResult one = run_mixer(device, p, {1});
  for (const int width : {2, 5, 19}) {
    const std::string what = "width " + std::to_string(width);
    expect_same(run_mixer(device, p, {width}), one, what);
    expect_same(run_mixer(device, p, {width}, Slots::in_place), one, what + ", in place");
  }
}

void generate_lanes_do_not_touch_each_other(Device& device) {
  const MixerProblem p =
      mixer_problem(device, 1, 2, 128, {3, 1, 4, 2, 3, 3, 1, 0, 5, 2, 3, 1, 4, 2, 3, 2});
  const MixerResult together = run_mixer(device, p, {2});
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    if (p.lengths[lane] == 0) continue;
    const MixerResult alone = run_mixer(device, only_lane(p, lane), {2});
    const MixerResult part{{together.out[lane]}, {together.state[lane]}, {together.conv[lane]}};
    expect_same(part, alone, "lane " + std::to_string(lane) + " of 16");
  }
}

void generate_can_be_captured(Device& device) {
  if (!device.supports_graphs()) GTEST_SKIP() << "no graphs on this kind of device";
  for (const int dim : {64, 128}) {
    const MixerProblem p = mixer_problem(device, 2, 3, dim, {9, 4});
    expect_same(run_mixer(device, p, {2}, Slots::in_place, true), run_mixer(device, p, {2}),
                "size " + std::to_string(dim));
  }
}

constexpr KernelCase kCases[] = {
    {"GdnGenerateMatchesTheFp64Oracle", generate_matches_the_fp64_oracle},
    {"GdnGenerateOfOtherSizesMatchesTheFp64Oracle",
     generate_of_other_sizes_matches_the_fp64_oracle},
    {"GdnGenerateBitsDependNeitherOnWidthNorOnSlots",
     generate_bits_depend_neither_on_width_nor_on_slots},
    {"GdnGenerateLanesDoNotTouchEachOther", generate_lanes_do_not_touch_each_other},
    {"GdnGenerateCanBeCaptured", generate_can_be_captured},
};

}  // namespace

std::span<const KernelCase> gdn_generate_cases() {
  return kCases;
}

}  // namespace convoy::test
