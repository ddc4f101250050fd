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
  const ActivationArray out = output_activations(device, ids.size() * static_cast<size_t>(hidden));
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
  const std::vector<int32_t> ids = {0, 149, 63, 64, 127, 128, 0, 77};
  for (const int hidden : {37, 64, 2056, 5120}) {
    Random random(5);
    const auto width = static_cast<size_t>(hidden);
    const std::vector<uint16_t> table = random.bf16s(kVocab * width);
    std::vector<float> want;
    for (const int32_t id : ids) {
      for (size_t i = 0; i < width; ++i)
        want.push_back(from_bf16(table[static_cast<size_t>(id) * width + i]));
    }
    expect_same_bits(run_embedding(device, table, kVocab, hidden, ids, false), want,
                     "from the table");
    expect_same_bits(run_embedding(device, table, kVocab, hidden, ids, true), want,
                     "from the packed weight");
  }
}

std::vector<float> run_swiglu(Device& device, const std::vector<float>& gate_up, int rows,
                              int size) {
  const ActivationArray in(device, gate_up);
  const ActivationArray out = output_activations(device, static_cast<size_t>(rows * size));
  const auto stream = device.make_stream();
  device.ops().swiglu(*stream, {in.data(), out.data(), rows, size});
  stream->synchronize();
  return out.read();
}

void swiglu_matches_the_fp64_oracle(Device& device) {
  Random random(6);
  for (const int size : {1, 16, 33, 200, 3072}) {
    const std::vector<float> in =
        as_activations(device, random.floats(static_cast<size_t>(3 * 2 * size), -30.0F, 30.0F));
    Doubles want;
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < size; ++i) {
        want.push_back(oracle_silu(in[static_cast<size_t>(r * 2 * size + i)]) *
                       in[static_cast<size_t>(r * 2 * size + size + i)]);
      }
    }
    expect_close(run_swiglu(device, in, 3, size), want, tolerance(device, 1e-6, 4e-6), 1e-6,
                 "size " + std::to_string(size));
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

GatesProblem gates_problem(Device& device, int rows, int heads) {
  Random random(static_cast<uint32_t>(rows + heads));
  GatesProblem p{rows, heads, {}, {}, {}, {}};
  p.a =
      as_activations(device, random.floats(static_cast<size_t>(rows * (heads + 2)), -30.0F, 30.0F));
  p.b = as_activations(device, random.floats(static_cast<size_t>(rows * (heads + 3)), -9.0F, 9.0F));
  p.a_log = random.floats(static_cast<size_t>(heads), -4.0F, 2.0F);
  p.dt_bias = random.floats(static_cast<size_t>(heads), -3.0F, 3.0F);
  return p;
}

std::vector<float> run_gates(Device& device, const GatesProblem& p) {
  const ActivationArray a(device, p.a), b(device, p.b);
  const DeviceArray<float> a_log(device, p.a_log), dt_bias(device, p.dt_bias);
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
    const GatesProblem p = gates_problem(device, 4, heads);
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
  for (const int valid : {1, 15, 16, 17, 100, 5000, 20'000, 248'320}) {
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

void argmax_rows_stand_alone(Device& device) {
  constexpr int kRows = 16, kValid = 9000;
  for (const int stride : {kValid, kValid + 3}) {
    Random random(77);
    std::vector<float> logits(static_cast<size_t>(kRows * stride), 1e9F);
    std::vector<int32_t> want;
    for (int r = 0; r < kRows; ++r) {
      float* const row = logits.data() + r * stride;
      for (int i = 0; i < kValid; ++i) row[i] = random.uniform(-9.0F, -1.0F);
      want.push_back(random.integer(0, kValid - 2));
      row[want.back()] = row[kValid - 1] = -0.5F;
    }
    want[3] = 0;  // nothing but -infinity
    std::fill_n(logits.begin() + 3 * stride, kValid, -kInfinity);
    want[4] = kValid - 1;  // one number at the end
    std::fill_n(logits.begin() + 4 * stride, kValid - 1, kNan);
    EXPECT_EQ(run_argmax(device, logits, kRows, stride, kValid), want) << "stride " << stride;
  }
}

template <typename T>
std::vector<T> run_fill(Device& device, FillRandomArgs args) {
  const DeviceArray<T> out(device, std::vector<T>(static_cast<size_t>(args.count)));
  const auto stream = device.make_stream();
  args.out = out.data();
  args.f32_out = sizeof(T) == sizeof(float);
  device.ops().fill_random(*stream, args);
  stream->synchronize();
  return out.read();
}

// Philox4x32-10 with key (0x89ABCDEF, 0x01234567) and counters (0, 0, 0, 1), (1, 0, 0, 1): the same
// words on every device. Computed apart from the code under test.
void random_values_are_the_same_everywhere(Device& device) {
  const std::vector<float> got = run_fill<float>(
      device, {.count = 8, .seed = 0x0123456789ABCDEF, .centre = 0.0F, .spread = 1.0F});
  const std::vector<float> want = {0x1.4387f80000000p-1F,  0x1.fb8e2c0000000p-1F,
                                   0x1.a04cd00000000p-1F,  -0x1.52b1300000000p-3F,
                                   -0x1.fa1ca00000000p-4F, -0x1.bfca600000000p-4F,
                                   -0x1.f515100000000p-3F, 0x1.326aa00000000p-1F};
  expect_same_bits(got, want, "the first values");
}

void random_values_do_not_depend_on_how_they_are_cut(Device& device) {
  constexpr uint64_t kFirst = 40;
  const FillRandomArgs all{.count = 5003, .seed = 99, .first = kFirst, .centre = 0.5F, .spread = 2};
  const std::vector<float> whole = run_fill<float>(device, all);
  const std::vector<uint16_t> rounded = run_fill<uint16_t>(device, all);
  double sum = 0;
  double squares = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(rounded[i], to_bf16(whole[i])) << "value " << i;
    ASSERT_TRUE(whole[i] >= -1.5F && whole[i] <= 2.5F) << whole[i];
    sum += whole[i];
    squares += (whole[i] - 0.5) * (whole[i] - 0.5);
  }
  EXPECT_NEAR(sum / 5003, 0.5, 0.06);
  EXPECT_NEAR(squares / 5003, 4.0 / 3, 0.06);
  for (const int64_t count : {1, 3, 7, 8, 1025}) {
    FillRandomArgs part = all;
    part.first = kFirst + 1204;
    part.count = count;
    const std::vector<float> got = run_fill<float>(device, part);
    expect_same_bits(got, std::vector<float>(whole.begin() + 1204, whole.begin() + 1204 + count),
                     std::to_string(count) + " values");
  }
}

constexpr KernelCase kCases[] = {
    {"EmbeddingRowsAreExact", embedding_rows_are_exact},
    {"SwigluMatchesTheFp64Oracle", swiglu_matches_the_fp64_oracle},
    {"SwigluHasTheRightLimits", swiglu_has_the_right_limits},
    {"GdnGatesMatchTheFp64Oracle", gdn_gates_match_the_fp64_oracle},
    {"ArgmaxTakesTheLowestIndexOfEquals", argmax_takes_the_lowest_index_of_equals},
    {"ArgmaxNeverTakesNanUnlessAllAre", argmax_never_takes_nan_unless_all_are},
    {"ArgmaxRowsStandAlone", argmax_rows_stand_alone},
    {"RandomValuesAreTheSameEverywhere", random_values_are_the_same_everywhere},
    {"RandomValuesDoNotDependOnHowTheyAreCut", random_values_do_not_depend_on_how_they_are_cut},
};

}  // namespace

std::span<const KernelCase> elementwise_cases() {
  return kCases;
}

std::vector<NamedResult> elementwise_results(Device& device) {
  Random random(8);
  return {{"swiglu", run_swiglu(device, random.floats(60 * 2 * 1001, -40.0F, 40.0F), 60, 1001)},
          {"gdn_gates", run_gates(device, gates_problem(device, 200, 48))}};
}

}  // namespace convoy::test
