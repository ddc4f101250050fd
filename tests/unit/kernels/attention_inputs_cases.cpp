#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

struct RopeProblem {
  int lanes, width, heads, head_dim, rotary_dim;
  std::vector<int> valid;
  std::vector<ControlRow> control;
  std::vector<float> x, inv_freq;
  std::vector<int32_t> axis;
  int head_stride() const { return head_dim + 5; }
  int column_stride() const { return heads * head_stride() + 3; }
};

RopeProblem rope_problem(Device& device, int width, int head_dim, int rotary_dim) {
  RopeProblem p{3, width, 2, head_dim, rotary_dim, {width, 0, (width + 1) / 2}, {}, {}, {}, {}};
  Random random(static_cast<uint32_t>(width + rotary_dim));
  for (int c = 0; c < p.lanes * width; ++c) {
    // Unequal rows, as inside an image.
    p.control.push_back(
        {c,
         {random.integer(0, 262'143), random.integer(0, 500), random.integer(0, 500)},
         0,
         p.valid[static_cast<size_t>(c / width)],
         -1,
         0});
  }
  p.x = as_activations(device,
                       random.floats(static_cast<size_t>(p.lanes * width * p.column_stride())));
  for (int i = 0; i < rotary_dim / 2; ++i) {
    p.inv_freq.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / rotary_dim)));
    p.axis.push_back(i % 3);
  }
  return p;
}

std::vector<float> run_rope(Device& device, const RopeProblem& p) {
  const DeviceArray<ControlRow> control(device, p.control);
  const ActivationArray x(device, p.x);
  const DeviceArray<float> inv_freq(device, p.inv_freq);
  const DeviceArray<int32_t> axis(device, p.axis);
  const auto stream = device.make_stream();
  RopeArgs args;
  args.step = {control.data(), p.lanes, p.width, PositionClass::prompt};
  args.x = x.data();
  args.column_stride = p.column_stride();
  args.head_stride = p.head_stride();
  args.heads = p.heads;
  args.rotary_dim = p.rotary_dim;
  args.inv_freq = inv_freq.data();
  args.axis = axis.data();
  device.ops().rope(*stream, args);
  stream->synchronize();
  return x.read();
}

void rope_matches_the_fp64_oracle(Device& device) {
  for (const int rotary_dim : {16, 32, 64}) {
    const RopeProblem p = rope_problem(device, 5, 64, rotary_dim);
    Doubles want(
        p.x.begin(),
        p.x.end());  // beyond rotary_dim, between heads and in dead columns nothing changes
    const int pairs = rotary_dim / 2;
    for (int c = 0; c < p.lanes * p.width; ++c) {
      if (c % p.width >= p.valid[static_cast<size_t>(c / p.width)]) continue;
      for (int h = 0; h < p.heads; ++h) {
        const size_t at = static_cast<size_t>(c * p.column_stride() + h * p.head_stride());
        for (int i = 0; i < pairs; ++i) {
          const auto pair = static_cast<size_t>(i);
          const int position = p.control[static_cast<size_t>(c)].rope_position[p.axis[pair]];
          // The angle is an f32 product by contract.
          const double angle = static_cast<float>(position) * p.inv_freq[pair];
          const double first = p.x[at + pair], second = p.x[at + static_cast<size_t>(i + pairs)];
          want[at + pair] = first * std::cos(angle) - second * std::sin(angle);
          want[at + static_cast<size_t>(i + pairs)] =
              second * std::cos(angle) + first * std::sin(angle);
        }
      }
    }
    const std::vector<float> got = run_rope(device, p);
    expect_close(got, want, tolerance(device, 3e-7), 1.0,
                 "rotary_dim " + std::to_string(rotary_dim));
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i] != static_cast<double>(p.x[i])) continue;
      ASSERT_EQ(got[i], p.x[i]) << "value " << i << " should be left alone";
    }
  }
}

struct InputsProblem {
  int heads, kv_heads, head_dim, rotary_dim;
  int lanes, width, max_pages;
  std::vector<int> valid;
  std::vector<ControlRow> control;
  std::vector<int32_t> block_tables;
  std::vector<float> qkv, q_norm, k_norm, inv_freq;
  std::vector<int32_t> axis;
  size_t row() const { return static_cast<size_t>((2 * heads + 2 * kv_heads) * head_dim); }
  size_t plane_size() const {
    return block_tables.size() * static_cast<size_t>(kv_heads * kPageTokens * head_dim);
  }
};

InputsProblem inputs_problem(Device& device, int heads, int kv_heads, int head_dim,
                             int rotary_dim) {
  InputsProblem p{heads, kv_heads, head_dim, rotary_dim, 3,  5,  4, {5, 0, 2},
                  {},    {},       {},       {},         {}, {}, {}};
  Random random(static_cast<uint32_t>(heads * 1000 + head_dim));
  for (int page = 0; page < p.lanes * p.max_pages; ++page)
    p.block_tables.push_back((page * 5 + 3) % (p.lanes * p.max_pages));
  for (int c = 0; c < p.lanes * p.width; ++c) {
    const int lane = c / p.width;
    p.control.push_back(
        {60 + 50 * lane + c % p.width,
         {random.integer(0, 262'143), random.integer(0, 500), random.integer(0, 500)},
         lane,
         p.valid[static_cast<size_t>(lane)],
         -1,
         0});
  }
  p.qkv = as_activations(device,
                         random.floats(p.row() * static_cast<size_t>(p.lanes * p.width), -3, 3));
  p.q_norm = random.floats(static_cast<size_t>(head_dim), -0.5F, 0.5F);
  p.k_norm = random.floats(static_cast<size_t>(head_dim), -0.5F, 0.5F);
  for (int i = 0; i < rotary_dim / 2; ++i) {
    p.inv_freq.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / rotary_dim)));
    p.axis.push_back(i % 3);
  }
  return p;
}

// The projection's rows, the K plane and the V plane, one after the other.
std::vector<float> run_inputs(Device& device, const InputsProblem& p, bool composed) {
  const DeviceArray<ControlRow> control(device, p.control);
  const DeviceArray<int32_t> tables(device, p.block_tables), axis(device, p.axis);
  const DeviceArray<float> q_norm(device, p.q_norm), k_norm(device, p.k_norm),
      inv_freq(device, p.inv_freq);
  const ActivationArray qkv(device, p.qkv), k = output_activations(device, p.plane_size()),
                                            v = output_activations(device, p.plane_size());
  const auto stream = device.make_stream();
  AttentionInputsArgs args;
  args.step = {control.data(), p.lanes, p.width, PositionClass::generated};
  args.qkv = qkv.data();
  args.column_stride = static_cast<ptrdiff_t>(p.row());
  args.heads = p.heads;
  args.q_norm = q_norm.data();
  args.k_norm = k_norm.data();
  args.rotary_dim = p.rotary_dim;
  args.inv_freq = inv_freq.data();
  args.axis = axis.data();
  args.cache = {k.data(), v.data(), tables.data(), p.max_pages, p.kv_heads, p.head_dim};
  if (composed) {
    device.ops().OpSet::attention_inputs(*stream, args);
  } else {
    device.ops().attention_inputs(*stream, args);
  }
  stream->synchronize();
  std::vector<float> all = qkv.read();
  for (const ActivationArray* plane : {&k, &v}) {
    const std::vector<float> values = plane->read();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

Doubles norm_and_rotate(const InputsProblem& p, const ControlRow& control, const float* x,
                        const std::vector<float>& weight) {
  Doubles y = oracle_rms_norm(x, weight.data(), p.head_dim, 1e-6, 1);
  const auto pairs = static_cast<size_t>(p.rotary_dim / 2);
  for (size_t i = 0; i < pairs; ++i) {
    const double angle =
        static_cast<float>(control.rope_position[p.axis[i]]) * p.inv_freq[i];  // in f32
    const double first = y[i], second = y[i + pairs];
    y[i] = first * std::cos(angle) - second * std::sin(angle);
    y[i + pairs] = second * std::cos(angle) + first * std::sin(angle);
  }
  return y;
}

// The values that attention reads later. What happens to the projection's keys and values and to
// its dead columns is left open.
void expect_inputs(Device& device, const InputsProblem& p, bool composed, double slack) {
  const std::vector<float> got = run_inputs(device, p, composed);
  const auto dim = static_cast<size_t>(p.head_dim);
  const size_t kv = static_cast<size_t>(p.kv_heads) * dim;
  const size_t planes = p.qkv.size();
  std::vector<double> want(got.begin(), got.begin() + static_cast<ptrdiff_t>(planes));
  want.resize(got.size(), kUntouched);
  for (size_t c = 0; c < p.control.size(); ++c) {
    const ControlRow& control = p.control[c];
    const float* const row = p.qkv.data() + c * p.row();
    if (static_cast<int>(c) % p.width >= control.valid_columns) continue;
    for (size_t h = 0; h < static_cast<size_t>(p.heads); ++h) {
      const size_t at = 2 * h * dim;
      const Doubles q = norm_and_rotate(p, control, row + at, p.q_norm);
      std::copy(q.begin(), q.end(), want.begin() + static_cast<ptrdiff_t>(c * p.row() + at));
      std::copy_n(row + at + dim, dim,
                  want.begin() + static_cast<ptrdiff_t>(c * p.row() + at + dim));
    }
    const auto page = static_cast<size_t>(p.block_tables[static_cast<size_t>(
        control.kv_row * p.max_pages + control.cache_position / kPageTokens)]);
    for (size_t h = 0; h < static_cast<size_t>(p.kv_heads); ++h) {
      const size_t slot = ((page * static_cast<size_t>(p.kv_heads) + h) * kPageTokens +
                           static_cast<size_t>(control.cache_position % kPageTokens)) *
                          dim;
      const float* const key = row + 2 * static_cast<size_t>(p.heads) * dim + h * dim;
      const Doubles k = norm_and_rotate(p, control, key, p.k_norm);
      std::copy(k.begin(), k.end(), want.begin() + static_cast<ptrdiff_t>(planes + slot));
      std::copy_n(key + kv, dim,
                  want.begin() + static_cast<ptrdiff_t>(planes + p.plane_size() + slot));
    }
  }
  expect_close(got, want, tolerance(device, 2e-6, slack), 0.5,
               "head_dim " + std::to_string(p.head_dim));
}

void attention_inputs_match_the_fp64_oracle(Device& device) {
  // The composition rounds after the norm, too.
  constexpr double kRoundedTwice = 0x1p-6;
  for (const bool composed : {false, true}) {
    const double slack = composed ? kRoundedTwice : 0;
    expect_inputs(device, inputs_problem(device, 24, 4, 256, 64), composed, slack);
    expect_inputs(device, inputs_problem(device, 2, 1, 256, 64), composed, slack);
    expect_inputs(device, inputs_problem(device, 3, 3, 80, 80), composed, slack);
    expect_inputs(device, inputs_problem(device, 4, 2, 128, 18), composed, slack);
    expect_inputs(device, inputs_problem(device, 1, 1, 16, 16), composed, slack);
  }
}

void later_block_table_deltas_win(Device& device) {
  constexpr int kRows = 3;
  constexpr int kPages = 7;
  Random random(4);
  std::vector<int32_t> tables(kRows * kPages, -5);
  const DeviceArray<int32_t> device_tables(device, tables);
  std::vector<BlockTableDelta> deltas;
  for (int i = 0; i < 100; ++i) {
    const BlockTableDelta delta{random.integer(0, kRows - 1), random.integer(1, kPages - 1), i};
    deltas.push_back(delta);
    tables[static_cast<size_t>(delta.kv_row * kPages + delta.block)] = delta.page;
  }
  const DeviceArray<BlockTableDelta> device_deltas(device, deltas);
  const auto stream = device.make_stream();
  device.ops().update_block_tables(*stream,
                                   {device_deltas.data(), 100, device_tables.data(), kPages});
  device.ops().update_block_tables(*stream, {nullptr, 0, device_tables.data(), kPages});
  stream->synchronize();
  EXPECT_EQ(device_tables.read(), tables);
}

constexpr KernelCase kCases[] = {
    {"RopeMatchesTheFp64Oracle", rope_matches_the_fp64_oracle},
    {"AttentionInputsMatchTheFp64Oracle", attention_inputs_match_the_fp64_oracle},
    {"LaterBlockTableDeltasWin", later_block_table_deltas_win},
};

}  // namespace

std::span<const KernelCase> attention_inputs_cases() {
  return kCases;
}

std::vector<NamedResult> attention_inputs_results(Device& device) {
  return {{"rope", run_rope(device, rope_problem(device, 100, 64, 64))},
          {"attention_inputs", run_inputs(device, inputs_problem(device, 6, 2, 128, 64), false)}};
}

}  // namespace convoy::test
