#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"
#include "tests/unit/kernels/kv_codec.h"

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
  KvDtype dtype;
  int heads, kv_heads, head_dim, rotary_dim;
  int lanes, width, max_pages;
  std::vector<int> valid;
  std::vector<ControlRow> control;
  std::vector<int32_t> block_tables;
  std::vector<float> qkv, q_norm, k_norm, inv_freq;
  std::vector<int32_t> axis;
  size_t row() const { return static_cast<size_t>((2 * heads + 2 * kv_heads) * head_dim); }
  KvPlaneImage empty_plane() const {
    return {dtype, static_cast<int>(block_tables.size()), kv_heads, head_dim};
  }
};

InputsProblem inputs_problem(Device& device, KvDtype dtype, int heads, int kv_heads, int head_dim,
                             int rotary_dim) {
  InputsProblem p{dtype,     heads, kv_heads, head_dim, rotary_dim, 3,  5,  4,
                  {5, 0, 2}, {},    {},       {},       {},         {}, {}, {}};
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

// The projection's rows and the planes afterwards.
struct Inputs {
  std::vector<float> qkv;
  KvPlaneImage k, v;
};

Inputs run_inputs(Device& device, const InputsProblem& p, bool composed) {
  const DeviceArray<ControlRow> control(device, p.control);
  const DeviceArray<int32_t> tables(device, p.block_tables), axis(device, p.axis);
  const DeviceArray<float> q_norm(device, p.q_norm), k_norm(device, p.k_norm),
      inv_freq(device, p.inv_freq);
  const ActivationArray qkv(device, p.qkv);
  Inputs result{{}, p.empty_plane(), p.empty_plane()};
  const DeviceArray<uint8_t> k(device, result.k.bytes()), v(device, result.v.bytes());
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
  args.cache = {k.data(), v.data(), tables.data(), p.max_pages, p.kv_heads, p.head_dim, p.dtype};
  if (composed) {
    device.ops().OpSet::attention_inputs(*stream, args);
  } else {
    device.ops().attention_inputs(*stream, args);
  }
  stream->synchronize();
  result.qkv = qkv.read();
  result.k.set_bytes(k.read());
  result.v.set_bytes(v.read());
  return result;
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

// What storing a key may add to its error: half a step of its group (int8) or half a unit in the
// last place (fp8).
double storing_error(const InputsProblem& p, const Doubles& key, size_t d) {
  if (p.dtype == KvDtype::fp8) return std::max(std::abs(key[d]) * 0x1p-4, 0x1p-10);
  if (p.dtype != KvDtype::int8) return 0;
  double largest = 0;
  for (size_t i = d / 64 * 64; i < std::min(key.size(), (d / 64 + 1) * 64); ++i)
    largest = std::max(largest, std::abs(key[i]));
  return largest / 127 * 0.501;
}

void expect_key(const InputsProblem& p, const std::vector<float>& got, const Doubles& want,
                double tolerance) {
  for (size_t d = 0; d < want.size(); ++d) {
    ASSERT_LE(std::abs(got[d] - want[d]),
              tolerance * (std::abs(want[d]) + 0.5) + storing_error(p, want, d))
        << "value " << d << " of a key is " << got[d] << ", not " << want[d] << ", head_dim "
        << p.head_dim << ", KV as " << kv_dtype_name(p.dtype);
  }
}

// The keys of a column's heads are near those of the oracle. Notes what the planes should hold of
// the column: these keys and the values, bit for bit.
void expect_stored(Device& device, const InputsProblem& p, const Inputs& got, size_t column,
                   double tolerance, Inputs& want) {
  const auto dim = static_cast<size_t>(p.head_dim);
  const ControlRow& control = p.control[column];
  const int page = p.block_tables[static_cast<size_t>(control.kv_row * p.max_pages +
                                                      control.cache_position / kPageTokens)];
  const int slot = control.cache_position % kPageTokens;
  const float* const keys =
      p.qkv.data() + column * p.row() + 2 * static_cast<size_t>(p.heads) * dim;
  for (int head = 0; head < p.kv_heads; ++head) {
    const float* const key = keys + static_cast<size_t>(head) * dim;
    expect_key(p, got.k.read(page, head, slot, has_bf16_activations(device)),
               norm_and_rotate(p, control, key, p.k_norm), tolerance);
    want.k.copy(got.k, page, head, slot);
    want.v.store(page, head, slot, key + static_cast<size_t>(p.kv_heads) * dim);
  }
}

// The values that attention reads later. What happens to the projection's keys and values and to
// its dead columns is left open.
void expect_inputs(Device& device, const InputsProblem& p, bool composed, double slack) {
  const Inputs got = run_inputs(device, p, composed);
  const double allowed = tolerance(device, 2e-6, slack);
  const auto dim = static_cast<size_t>(p.head_dim);
  Doubles want(got.qkv.begin(), got.qkv.end());
  Inputs planes{{}, p.empty_plane(), p.empty_plane()};
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
    expect_stored(device, p, got, c, allowed, planes);
    if (testing::Test::HasFailure()) return;
  }
  expect_close(got.qkv, want, allowed, 0.5, "head_dim " + std::to_string(p.head_dim));
  expect_same_bits(got.k.bytes(), planes.k.bytes(), "the K plane beside live columns");
  expect_same_bits(got.v.bytes(), planes.v.bytes(), "the V plane");
}

void attention_inputs_match_the_fp64_oracle(Device& device, KvDtype dtype) {
  // The composition rounds after the norm, too.
  constexpr double kRoundedTwice = 0x1p-6;
  for (const bool composed : {false, true}) {
    const double slack = composed ? kRoundedTwice : 0;
    expect_inputs(device, inputs_problem(device, dtype, 24, 4, 256, 64), composed, slack);
    expect_inputs(device, inputs_problem(device, dtype, 2, 1, 256, 64), composed, slack);
    expect_inputs(device, inputs_problem(device, dtype, 3, 3, 80, 80), composed, slack);
    expect_inputs(device, inputs_problem(device, dtype, 4, 2, 128, 18), composed, slack);
    expect_inputs(device, inputs_problem(device, dtype, 1, 1, 16, 16), composed, slack);
  }
}

void plain_inputs(Device& device) {
  attention_inputs_match_the_fp64_oracle(device, default_kv_dtype(device.kind()));
}
void quantised_inputs(Device& device) {
  for (const KvDtype dtype : quantised_dtypes(device))
    attention_inputs_match_the_fp64_oracle(device, dtype);
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
    {"AttentionInputsMatchTheFp64Oracle", plain_inputs},
    {"AttentionInputsQuantisedMatchTheFp64Oracle", quantised_inputs},
    {"LaterBlockTableDeltasWin", later_block_table_deltas_win},
};

}  // namespace

std::span<const KernelCase> attention_inputs_cases() {
  return kCases;
}

std::vector<NamedResult> attention_inputs_results(Device& device) {
  const auto read_back = [&](KvDtype dtype) {
    Inputs inputs = run_inputs(device, inputs_problem(device, dtype, 6, 2, 128, 64), false);
    for (const KvPlaneImage* plane : {&inputs.k, &inputs.v})
      inputs.qkv.insert(inputs.qkv.end(), plane->bytes().begin(), plane->bytes().end());
    return inputs.qkv;
  };
  return {{"rope", run_rope(device, rope_problem(device, 100, 64, 64))},
          {"attention_inputs", read_back(default_kv_dtype(device.kind()))},
          {"attention_inputs, KV as int8", read_back(KvDtype::int8)}};
}

}  // namespace convoy::test
