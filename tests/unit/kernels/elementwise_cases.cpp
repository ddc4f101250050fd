#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> run_embedding(Device& device, const std::vector<uint16_t>& table, int vocab,
                                 int hidden, const std::vector<int32_t>& ids, bool packed) {
  const DeviceArray<uint16_t> plain(device, table);
  const DeviceArray<uint16_t> panels(
      device, std::vector<uint16_t>(device.ops().packed_linear_bytes(vocab, hidden) / 2, 0x7FC0));
  device.ops().pack_linear(table.data(), vocab, 0, vocab, hidden, panels.data());
  const DeviceArray<int32_t> device_ids(device, ids);
  const DeviceArray<float> out = output_array(device, ids.size() * static_cast<size_t>(hidden));
  const auto stream = device.make_stream();
  EmbeddingArgs args;
  args.ids = device_ids.data();
  args.rows = static_cast<int>(ids.size());
  args.hidden = hidden;
  args.table = packed ? nullptr : plain.data();
  args.packed = {panels.data(), vocab, hidden};
  args.out = out.data();
  device.ops().embedding(*stream, args);
  stream->synchronize();
  return out.read();
}

void embedding_rows_are_exact(Device& device) {
  constexpr int kVocab = 150;
  constexpr int kHidden = 37;
  Random random(5);
  const std::vector<uint16_t> table = random.bf16s(kVocab * kHidden);
  const std::vector<int32_t> ids = {0, 149, 63, 64, 127, 128, 0, 77};
  std::vector<float> want;
  for (const int32_t id : ids) {
    for (int i = 0; i < kHidden; ++i)
      want.push_back(from_bf16(table[static_cast<size_t>(id * kHidden + i)]));
  }
  expect_same_bits(run_embedding(device, table, kVocab, kHidden, ids, false), want,
                   "from the table");
  expect_same_bits(run_embedding(device, table, kVocab, kHidden, ids, true), want,
                   "from the packed weight");
}

std::vector<float> run_swiglu(Device& device, const std::vector<float>& gate_up, int rows,
                              int size) {
  const DeviceArray<float> in(device, gate_up);
  const DeviceArray<float> out = output_array(device, static_cast<size_t>(rows * size));
  const auto stream = device.make_stream();
  device.ops().swiglu(*stream, {in.data(), out.data(), rows, size});
  stream->synchronize();
  return out.read();
}

void swiglu_matches_the_fp64_oracle(Device& device) {
  Random random(6);
  for (const int size : {1, 16, 33, 200}) {
    const std::vector<float> in = random.floats(static_cast<size_t>(3 * 2 * size), -30.0F, 30.0F);
    Doubles want;
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < size; ++i) {
        want.push_back(oracle_silu(in[static_cast<size_t>(r * 2 * size + i)]) *
                       in[static_cast<size_t>(r * 2 * size + size + i)]);
      }
    }
    expect_close(run_swiglu(device, in, 3, size), want, 1e-6, 1e-6, "size " + std::to_string(size));
  }
}

void swiglu_has_the_right_limits(Device& device) {
  const std::vector<float> out =
      run_swiglu(device, {-200.0F, 200.0F, 0.0F, kNan, 2.0F, 3.0F, 4.0F, 5.0F}, 1, 4);
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_EQ(out[1], 600.0F);
  EXPECT_EQ(out[2], 0.0F);
  EXPECT_TRUE(std::isnan(out[3]));
}

struct GatesProblem {
  int rows, heads;
  std::vector<float> a, b, a_log, dt_bias;
};

GatesProblem gates_problem(int rows, int heads) {
  Random random(static_cast<uint32_t>(rows + heads));
  GatesProblem p{rows, heads, {}, {}, {}, {}};
  p.a = random.floats(static_cast<size_t>(rows * (heads + 2)), -30.0F, 30.0F);
  p.b = random.floats(static_cast<size_t>(rows * (heads + 3)), -9.0F, 9.0F);
  p.a_log = random.floats(static_cast<size_t>(heads), -4.0F, 2.0F);
  p.dt_bias = random.floats(static_cast<size_t>(heads), -3.0F, 3.0F);
  return p;
}

std::vector<float> run_gates(Device& device, const GatesProblem& p) {
  const DeviceArray<float> a(device, p.a), b(device, p.b), a_log(device, p.a_log),
      dt_bias(device, p.dt_bias);
  const auto count = static_cast<size_t>(p.rows * p.heads);
  const DeviceArray<float> g = output_array(device, count), beta = output_array(device, count);
  const auto stream = device.make_stream();
  device.ops().gdn_gates(*stream, {a.data(), b.data(), p.heads + 2, p.heads + 3, a_log.data(),
                                   dt_bias.data(), p.rows, p.heads, g.data(), beta.data()});
  stream->synchronize();
  std::vector<float> both = g.read();
  for (const float value : beta.read()) both.push_back(value);
  return both;
}

void gdn_gates_match_the_fp64_oracle(Device& device) {
  for (const int heads : {1, 16, 33}) {
    const GatesProblem p = gates_problem(4, heads);
    Doubles g, beta;
    for (int r = 0; r < p.rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        const auto head = static_cast<size_t>(h);
        const double x =
            static_cast<double>(p.a[static_cast<size_t>(r * (heads + 2) + h)]) + p.dt_bias[head];
        g.push_back(-std::exp(static_cast<double>(p.a_log[head])) *
                    (x > 40 ? x : std::log1p(std::exp(x))));
        beta.push_back(oracle_sigmoid(p.b[static_cast<size_t>(r * (heads + 3) + h)]));
      }
    }
    g.insert(g.end(), beta.begin(), beta.end());
    expect_close(run_gates(device, p), g, 2e-6, 1e-9, "heads " + std::to_string(heads));
  }
}

struct RopeProblem {
  int lanes, width, heads, head_dim, rotary_dim;
  std::vector<int> valid;
  std::vector<ControlRow> control;
  std::vector<float> x, inv_freq;
  std::vector<int32_t> axis;
  int head_stride() const { return head_dim + 5; }
  int column_stride() const { return heads * head_stride() + 3; }
};

RopeProblem rope_problem(int width, int head_dim, int rotary_dim) {
  RopeProblem p{3, width, 2, head_dim, rotary_dim, {width, 0, (width + 1) / 2}, {}, {}, {}, {}};
  Random random(static_cast<uint32_t>(width + rotary_dim));
  for (int c = 0; c < p.lanes * width; ++c) {
    // Unequal rows, as inside an image.
    p.control.push_back(
        {c,
         {random.integer(0, 200'000), random.integer(0, 500), random.integer(0, 500)},
         0,
         p.valid[static_cast<size_t>(c / width)],
         -1,
         0});
  }
  p.x = random.floats(static_cast<size_t>(p.lanes * width * p.column_stride()));
  for (int i = 0; i < rotary_dim / 2; ++i) {
    p.inv_freq.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / rotary_dim)));
    p.axis.push_back(i % 3);
  }
  return p;
}

std::vector<float> run_rope(Device& device, const RopeProblem& p) {
  const DeviceArray<ControlRow> control(device, p.control);
  const DeviceArray<float> x(device, p.x), inv_freq(device, p.inv_freq);
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
    const RopeProblem p = rope_problem(5, 64, rotary_dim);
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
    expect_close(got, want, 3e-7, 1.0, "rotary_dim " + std::to_string(rotary_dim));
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i] != static_cast<double>(p.x[i])) continue;
      ASSERT_EQ(got[i], p.x[i]) << "value " << i << " should be left alone";
    }
  }
}

std::vector<int32_t> run_argmax(Device& device, const std::vector<float>& logits, int rows,
                                int stride, int valid) {
  const DeviceArray<float> values(device, logits);
  const DeviceArray<int32_t> ids(device, std::vector<int32_t>(static_cast<size_t>(rows), -7));
  const auto stream = device.make_stream();
  device.ops().argmax(*stream, {values.data(), stride, rows, valid, ids.data()});
  stream->synchronize();
  return ids.read();
}

void argmax_takes_the_lowest_index_of_equals(Device& device) {
  for (const int valid : {1, 15, 16, 17, 100, 5000, 20'000}) {
    Random random(static_cast<uint32_t>(valid));
    const int stride = valid + 20;
    std::vector<float> logits(static_cast<size_t>(stride),
                              1e9F);  // what lies beyond `valid` is larger
    for (int i = 0; i < valid; ++i) logits[static_cast<size_t>(i)] = random.uniform(-1.0F, 1.0F);
    const int first = random.integer(0, valid - 1);
    for (int i = first; i < valid; i += 1 + valid / 5) logits[static_cast<size_t>(i)] = 2.0F;
    EXPECT_EQ(run_argmax(device, logits, 1, stride, valid)[0], first) << valid << " values";
  }
  EXPECT_EQ(run_argmax(device, {-0.0F, 0.0F, -1.0F}, 1, 3, 3)[0], 0)
      << "zeros are equal whatever their sign";
}

void argmax_never_takes_nan_unless_all_are(Device& device) {
  EXPECT_EQ(run_argmax(device, {kNan, 1.0F, kNan, 2.0F}, 1, 4, 4)[0], 3);
  EXPECT_EQ(run_argmax(device, {kNan, -kInfinity, kNan, -kInfinity}, 1, 4, 4)[0], 1);
  EXPECT_EQ(run_argmax(device, {-kInfinity, -kInfinity}, 1, 2, 2)[0], 0);
  EXPECT_EQ(run_argmax(device, {kNan, kNan, kNan}, 1, 3, 3)[0], 0);
  EXPECT_EQ(run_argmax(device, {1.0F, kInfinity, kInfinity}, 1, 3, 3)[0], 1);
  EXPECT_EQ(run_argmax(device, {-3.0F, -2.0F, 9.0F, 5.0F, kNan, 9.0F}, 2, 3, 2),
            (std::vector<int32_t>{1, 0}));
}

constexpr KernelCase kCases[] = {
    {"EmbeddingRowsAreExact", embedding_rows_are_exact},
    {"SwigluMatchesTheFp64Oracle", swiglu_matches_the_fp64_oracle},
    {"SwigluHasTheRightLimits", swiglu_has_the_right_limits},
    {"GdnGatesMatchTheFp64Oracle", gdn_gates_match_the_fp64_oracle},
    {"RopeMatchesTheFp64Oracle", rope_matches_the_fp64_oracle},
    {"ArgmaxTakesTheLowestIndexOfEquals", argmax_takes_the_lowest_index_of_equals},
    {"ArgmaxNeverTakesNanUnlessAllAre", argmax_never_takes_nan_unless_all_are},
};

}  // namespace

std::span<const KernelCase> elementwise_cases() {
  return kCases;
}

std::vector<NamedResult> elementwise_results(Device& device) {
  Random random(8);
  return {{"swiglu", run_swiglu(device, random.floats(60 * 2 * 1001, -40.0F, 40.0F), 60, 1001)},
          {"gdn_gates", run_gates(device, gates_problem(200, 48))},
          {"rope", run_rope(device, rope_problem(100, 64, 64))}};
}

}  // namespace convoy::test
