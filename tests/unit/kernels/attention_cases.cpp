#include <numeric>
#include <string>

#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"
#include "tests/unit/kernels/sequence_steps.h"

namespace convoy::test {
namespace {

struct AttentionProblem {
  int heads, kv_heads, head_dim;
  bool gated;
  std::vector<int> lengths;
  int max_pages;
  std::vector<int32_t> block_tables;              // page ids in random order
  std::vector<std::vector<float>> q, k, v, gate;  // per lane [length, heads or kv_heads, head_dim]
};

AttentionProblem attention_problem(int heads, int kv_heads, int head_dim, std::vector<int> lengths,
                                   bool gated = true) {
  Random random(static_cast<uint32_t>(heads * 100 + head_dim));
  AttentionProblem p{heads, kv_heads, head_dim, gated, std::move(lengths), 0, {}, {}, {}, {}, {}};
  const int longest = *std::max_element(p.lengths.begin(), p.lengths.end());
  p.max_pages = longest / kPageTokens + 2;
  p.block_tables.resize(p.lengths.size() * static_cast<size_t>(p.max_pages));
  std::iota(p.block_tables.begin(), p.block_tables.end(), 0);
  for (size_t i = p.block_tables.size() - 1; i > 0; --i) {
    std::swap(p.block_tables[i],
              p.block_tables[static_cast<size_t>(random.integer(0, static_cast<int>(i)))]);
  }
  for (const int length : p.lengths) {
    const auto q_size = static_cast<size_t>(length * heads * head_dim);
    const auto kv_size = static_cast<size_t>(length * kv_heads * head_dim);
    p.q.push_back(random.floats(q_size, -2.0F, 2.0F));
    p.gate.push_back(random.floats(q_size, -4.0F, 4.0F));
    p.k.push_back(random.floats(kv_size, -2.0F, 2.0F));
    p.v.push_back(random.floats(kv_size, -2.0F, 2.0F));
  }
  return p;
}

// Queries and gates travel as the projection makes them: per head, query then gate.
std::vector<float> interleave_heads(const std::vector<float>& q, const std::vector<float>& gate,
                                    size_t dim) {
  std::vector<float> both;
  for (size_t at = 0; at < q.size(); at += dim) {
    both.insert(both.end(), q.begin() + static_cast<ptrdiff_t>(at),
                q.begin() + static_cast<ptrdiff_t>(at + dim));
    both.insert(both.end(), gate.begin() + static_cast<ptrdiff_t>(at),
                gate.begin() + static_cast<ptrdiff_t>(at + dim));
  }
  return both;
}

// Writes and reads the cache step by step; returns each lane's outputs [length, heads * head_dim].
std::vector<std::vector<float>> run_attention(Device& device, const AttentionProblem& p,
                                              const std::vector<int>& widths) {
  const auto dim = static_cast<size_t>(p.head_dim);
  const size_t row = static_cast<size_t>(p.heads) * dim;
  const size_t kv_row = static_cast<size_t>(p.kv_heads) * dim;
  const size_t lanes = p.lengths.size();
  // NaN wherever nothing was stored: reading one value too many shows.
  const std::vector<float> empty_plane(p.block_tables.size() * kPageTokens * kv_row, kNan);
  const DeviceArray<float> k_plane(device, empty_plane), v_plane(device, empty_plane);
  const DeviceArray<int32_t> tables(device, p.block_tables);
  const KvPlanes cache{k_plane.data(), v_plane.data(), tables.data(),
                       p.max_pages,    p.kv_heads,     p.head_dim};
  std::vector<std::vector<float>> queries;
  for (size_t lane = 0; lane < lanes; ++lane)
    queries.push_back(interleave_heads(p.q[lane], p.gate[lane], dim));
  const auto stream = device.make_stream();
  const std::vector<int> no_state(lanes, -1);
  std::vector<std::vector<float>> result(lanes);
  size_t stored = 0;
  for (const SequenceStep& step : cut_into_steps(p.lengths, widths)) {
    const DeviceArray<ControlRow> control(device, control_rows(step, no_state, no_state));
    const StepView view{control.data(), static_cast<int>(lanes), step.width, PositionClass::prompt};
    const DeviceArray<float> k(device, gather_columns(step, p.k, kv_row, 1e30F));
    const DeviceArray<float> v(device, gather_columns(step, p.v, kv_row, 1e30F));
    const DeviceArray<float> q(device, gather_columns(step, queries, 2 * row, kNan));
    const DeviceArray<float> out =
        output_array(device, lanes * static_cast<size_t>(step.width) * row);
    device.ops().kv_write(*stream, {view, k.data(), v.data(), static_cast<ptrdiff_t>(kv_row),
                                    static_cast<ptrdiff_t>(kv_row), cache});
    PagedAttentionArgs args;
    args.step = view;
    args.q = q.data();
    args.gate = p.gated ? q.data() + dim : nullptr;
    args.q_column_stride = args.gate_column_stride = static_cast<ptrdiff_t>(2 * row);
    args.q_head_stride = args.gate_head_stride = static_cast<ptrdiff_t>(2 * dim);
    args.heads = p.heads;
    args.cache = cache;
    args.out = out.data();
    device.ops().paged_attention(*stream, args);
    stream->synchronize();
    scatter_columns(step, out.read(), row, result);
    for (const int valid : step.valid) stored += static_cast<size_t>(valid) * kv_row;
  }
  for (const DeviceArray<float>* plane : {&k_plane, &v_plane}) {
    const std::vector<float> values = plane->read();
    const auto written = static_cast<size_t>(
        std::count_if(values.begin(), values.end(), [](float x) { return !std::isnan(x); }));
    EXPECT_EQ(written, stored) << "a dead column was stored, or a live one was not";
  }
  return result;
}

void expect_oracle(Device& device, const AttentionProblem& p, const std::vector<int>& widths) {
  const auto got = run_attention(device, p, widths);
  const int kv_row = p.kv_heads * p.head_dim;
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    Doubles want;
    for (int t = 0; t < p.lengths[lane]; ++t) {
      for (int h = 0; h < p.heads; ++h) {
        const int kv_head = h / (p.heads / p.kv_heads);
        const auto at = static_cast<size_t>((t * p.heads + h) * p.head_dim);
        const Doubles a =
            oracle_attention(p.q[lane].data() + at, p.k[lane].data() + kv_head * p.head_dim,
                             p.v[lane].data() + kv_head * p.head_dim, t + 1, kv_row, p.head_dim);
        for (size_t d = 0; d < a.size(); ++d) {
          want.push_back(a[d] * (p.gated ? oracle_sigmoid(p.gate[lane][at + d]) : 1.0));
        }
      }
    }
    expect_close(got[lane], want, 5e-6, 0.2,
                 "lane " + std::to_string(lane) + ", head_dim " + std::to_string(p.head_dim));
    if (testing::Test::HasFailure()) return;
  }
}

void matches_the_fp64_oracle(Device& device) {
  expect_oracle(device, attention_problem(6, 2, 64, {1, 64, 65, 130}), {64});
  expect_oracle(device, attention_problem(4, 1, 128, {70, 3}), {70});
  expect_oracle(device, attention_problem(2, 2, 256, {66}, false), {33});
  expect_oracle(device, attention_problem(5, 1, 16, {100}), {7});
  expect_oracle(device, attention_problem(3, 3, 80, {40}), {40});
}

void decode_of_sixteen_lanes_matches_the_fp64_oracle(Device& device) {
  std::vector<int> lengths;
  for (int lane = 0; lane < 16; ++lane) lengths.push_back(1 + lane * 9 % 80);
  expect_oracle(device, attention_problem(4, 2, 32, lengths), {1});
}

void cuts_change_no_bit(Device& device) {
  const AttentionProblem p = attention_problem(6, 2, 128, {300, 129});
  const auto whole = run_attention(device, p, {320});
  for (const std::vector<int>& widths :
       std::vector<std::vector<int>>{{64}, {128}, {192}, {1, 2, 3, 4, 5, 6, 7}, {17}}) {
    const auto parts = run_attention(device, p, widths);
    for (size_t lane = 0; lane < whole.size(); ++lane) {
      expect_same_bits(parts[lane], whole[lane], "steps of " + std::to_string(widths[0]));
    }
  }
}

void lanes_do_not_depend_on_each_other(Device& device) {
  const AttentionProblem p = attention_problem(4, 2, 64, {90, 200, 1});
  const auto together = run_attention(device, p, {64});
  for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
    AttentionProblem alone = p;
    alone.lengths = {p.lengths[lane]};
    alone.q = {p.q[lane]};
    alone.k = {p.k[lane]};
    alone.v = {p.v[lane]};
    alone.gate = {p.gate[lane]};
    expect_same_bits(run_attention(device, alone, {64})[0], together[lane],
                     "lane " + std::to_string(lane) + " alone");
  }
}

constexpr KernelCase kCases[] = {
    {"AttentionMatchesTheFp64Oracle", matches_the_fp64_oracle},
    {"AttentionOfSixteenDecodingLanesMatchesTheFp64Oracle",
     decode_of_sixteen_lanes_matches_the_fp64_oracle},
    {"AttentionCutsChangeNoBit", cuts_change_no_bit},
    {"AttentionLanesDoNotDependOnEachOther", lanes_do_not_depend_on_each_other},
};

}  // namespace

std::span<const KernelCase> attention_cases() {
  return kCases;
}

std::vector<NamedResult> attention_results(Device& device) {
  return {{"paged_attention of a prompt",
           run_attention(device, attention_problem(8, 2, 128, {200}), {128})[0]},
          {"paged_attention of decoding",
           run_attention(device, attention_problem(6, 1, 64, {70, 90}), {1})[1]}};
}

}  // namespace convoy::test
