#include <numeric>
#include <string>

#include "tests/unit/kernels/attention_problem.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

constexpr PositionClass kClasses[] = {PositionClass::prompt, PositionClass::generated};

// What the cache should hold in the end: every live column, and nothing else.
KvPlaneImage stored_plane(const AttentionProblem& p,
                          const std::vector<std::vector<float>>& tokens) {
  KvPlaneImage plane = AttentionMemory::empty_plane(p);
  for (size_t lane = 0; lane < tokens.size(); ++lane) {
    for (size_t t = 0; t * p.kv_row() < tokens[lane].size(); ++t) {
      const int page =
          p.block_tables[lane * static_cast<size_t>(p.max_pages) + t / size_t{kPageTokens}];
      for (int head = 0; head < p.kv_heads; ++head) {
        plane.store(page, head, static_cast<int>(t % size_t{kPageTokens}),
                    &tokens[lane][t * p.kv_row() + static_cast<size_t>(head) * p.dim()]);
      }
    }
  }
  return plane;
}

// Writes and reads the cache step by step; returns each lane's outputs [length, heads * head_dim].
std::vector<std::vector<float>> run_attention(Device& device, const AttentionProblem& p,
                                              const std::vector<int>& widths,
                                              PositionClass position_class) {
  const AttentionMemory memory(device, p);
  const auto stream = device.make_stream();
  fill_contexts(device, *stream, p, memory);
  std::vector<std::vector<float>> result(p.lengths.size());
  for (const SequenceStep& step : cut_into_steps(p.lengths, widths)) {
    const AttentionStep work(device, p, step, position_class);
    work.enqueue(device, *stream, p, memory);
    stream->synchronize();
    scatter_columns(step, work.out.read(), p.row(), result);
  }
  expect_same_bits(memory.k.read(), stored_plane(p, p.k).bytes(), "the K plane");
  expect_same_bits(memory.v.read(), stored_plane(p, p.v).bytes(), "the V plane");
  (void)memory.scratch.read();  // the guards
  return result;
}

Doubles oracle_of_lane(Device& device, const AttentionProblem& p, size_t lane) {
  const auto k = as_stored(device, p.dtype, p.k[lane], p.kv_heads, p.head_dim);
  const auto v = as_stored(device, p.dtype, p.v[lane], p.kv_heads, p.head_dim);
  Doubles want;
  const int kv_row = p.kv_heads * p.head_dim;
  for (int t = 0; t < p.lengths[lane]; ++t) {
    for (int h = 0; h < p.heads; ++h) {
      const int kv_head = h / (p.heads / p.kv_heads);
      const auto at = static_cast<size_t>((t * p.heads + h) * p.head_dim);
      const Doubles a = oracle_attention(p.q[lane].data() + at, k.data() + kv_head * p.head_dim,
                                         v.data() + kv_head * p.head_dim, p.contexts[lane] + t + 1,
                                         kv_row, p.head_dim);
      for (size_t d = 0; d < a.size(); ++d)
        want.push_back(a[d] * (p.gated ? oracle_sigmoid(p.gate[lane][at + d]) : 1.0));
    }
  }
  return want;
}

void expect_oracle(Device& device, const AttentionProblem& p, const std::vector<int>& widths) {
  std::vector<Doubles> want;
  for (size_t lane = 0; lane < p.lengths.size(); ++lane)
    want.push_back(oracle_of_lane(device, p, lane));
  for (const PositionClass position_class : kClasses) {
    const auto got = run_attention(device, p, widths, position_class);
    for (size_t lane = 0; lane < p.lengths.size(); ++lane) {
      // Weights are bf16 where activations are.
      expect_close(got[lane], want[lane], tolerance(device, 5e-6, 0x1p-6), 0.2,
                   "class " + std::to_string(static_cast<int>(position_class)) + ", lane " +
                       std::to_string(lane) + ", head_dim " + std::to_string(p.head_dim) +
                       ", KV as " + kv_dtype_name(p.dtype));
      if (testing::Test::HasFailure()) return;
    }
  }
}

void matches_the_fp64_oracle(Device& device, KvDtype dtype) {
  expect_oracle(device, attention_problem(device, dtype, 6, 2, 64, {1, 64, 65, 130}), {64});
  expect_oracle(device, attention_problem(device, dtype, 4, 1, 128, {70, 3}), {70});
  AttentionProblem no_gate = attention_problem(device, dtype, 2, 2, 256, {66});
  no_gate.gated = false;
  expect_oracle(device, no_gate, {33});
  expect_oracle(device, attention_problem(device, dtype, 5, 1, 16, {100}), {7});
  expect_oracle(device, attention_problem(device, dtype, 3, 3, 80, {40}), {40});
}

void decode_of_sixteen_lanes_matches_the_fp64_oracle(Device& device, KvDtype dtype) {
  std::vector<int> lengths;
  for (int lane = 0; lane < 16; ++lane) lengths.push_back(1 + lane * 9 % 80);
  expect_oracle(device, attention_problem(device, dtype, 4, 2, 32, lengths), {1});
}

void long_contexts_match_the_fp64_oracle(Device& device, KvDtype dtype) {
  expect_oracle(device, attention_problem(device, dtype, 24, 4, 256, {4, 2, 7}, {2304, 1022, 509}),
                {3});
  expect_oracle(device, attention_problem(device, dtype, 8, 1, 128, {5}, {5000}), {5});
}

void expect_cuts_change_no_bit(Device& device, const AttentionProblem& p, int whole_width,
                               const std::vector<std::vector<int>>& cuts,
                               PositionClass position_class) {
  const auto whole = run_attention(device, p, {whole_width}, position_class);
  for (const std::vector<int>& widths : cuts) {
    const auto parts = run_attention(device, p, widths, position_class);
    for (size_t lane = 0; lane < whole.size(); ++lane) {
      expect_same_bits(parts[lane], whole[lane],
                       "class " + std::to_string(static_cast<int>(position_class)) + ", steps of " +
                           std::to_string(widths[0]));
      if (testing::Test::HasFailure()) return;
    }
  }
}

void cuts_change_no_bit(Device& device, KvDtype dtype) {
  const AttentionProblem p = attention_problem(device, dtype, 6, 2, 128, {300, 129});
  expect_cuts_change_no_bit(device, p, 320, {{64}, {128}, {192}, {1, 2, 3, 4, 5, 6, 7}, {17}},
                            PositionClass::prompt);
  const AttentionProblem wide =
      attention_problem(device, dtype, 12, 2, 256, {200, 3, 70}, {64, 512, 0});
  expect_cuts_change_no_bit(device, wide, 256, {{64}, {128, 64}, {31}}, PositionClass::prompt);
  const AttentionProblem narrow = attention_problem(device, dtype, 8, 1, 64, {150});
  expect_cuts_change_no_bit(device, narrow, 150, {{64}, {9}}, PositionClass::prompt);
}

void widths_of_generated_steps_change_no_bit(Device& device, KvDtype dtype) {
  std::vector<std::vector<int>> widths = {{5}, {16}, {70}};
  if (dtype == default_kv_dtype(device.kind())) widths.insert(widths.end(), {{2}, {1, 3, 8}, {64}});
  for (const AttentionProblem& p :
       {attention_problem(device, dtype, 24, 4, 256, {80, 9, 33}, {990, 60, 1270}),
        attention_problem(device, dtype, 2, 1, 256, {70}, {500}),
        attention_problem(device, dtype, 5, 1, 128, {70, 1, 20}, {1200, 1279, 0}),
        attention_problem(device, dtype, 3, 3, 48, {20, 70}, {300, 0})}) {
    expect_cuts_change_no_bit(device, p, 1, widths, PositionClass::generated);
    if (testing::Test::HasFailure()) return;
  }
}

void lanes_do_not_depend_on_each_other(Device& device, KvDtype dtype) {
  std::vector<int> lengths = {90, 200, 1};
  std::vector<int> contexts = {0, 100, 1500};
  for (int lane = 3; lane < kMaxLanes; ++lane) {
    lengths.push_back(lane % 4);
    contexts.push_back(lane * 37);
  }
  const AttentionProblem p = attention_problem(device, dtype, 4, 2, 64, lengths, contexts);
  for (const PositionClass position_class : kClasses) {
    const std::vector<int> widths = {position_class == PositionClass::prompt ? 64 : 5};
    const auto together = run_attention(device, p, widths, position_class);
    for (size_t lane = 0; lane < 5; ++lane) {
      AttentionProblem alone = p;
      alone.lengths = {p.lengths[lane]};
      alone.contexts = {p.contexts[lane]};
      alone.q = {p.q[lane]};
      alone.k = {p.k[lane]};
      alone.v = {p.v[lane]};
      alone.gate = {p.gate[lane]};
      alone.block_tables.resize(static_cast<size_t>(p.max_pages));
      std::iota(alone.block_tables.begin(), alone.block_tables.end(), 0);
      if (alone.lengths[0] == 0) continue;
      expect_same_bits(run_attention(device, alone, widths, position_class)[0], together[lane],
                       "lane " + std::to_string(lane) + " alone");
      if (testing::Test::HasFailure()) return;
    }
  }
}

// A graph is captured before the positions that it will run at are known.
void a_captured_step_gives_the_same_bits_at_every_position(Device& device, KvDtype dtype) {
  if (!device.supports_graphs()) return;
  const AttentionProblem p = attention_problem(device, dtype, 6, 2, 256, {20, 5}, {1020, 60});
  for (const PositionClass position_class : kClasses) {
    const auto want = run_attention(device, p, {3}, position_class);
    const AttentionMemory memory(device, p);
    const auto stream = device.make_stream();
    fill_contexts(device, *stream, p, memory);
    const std::vector<SequenceStep> steps = cut_into_steps(p.lengths, {3});
    const AttentionStep captured(device, p, steps.back(), position_class);
    const auto graph =
        device.capture(*stream, [&] { captured.enqueue(device, *stream, p, memory); });
    std::vector<std::vector<float>> got(p.lengths.size());
    for (const SequenceStep& step : steps) {
      const AttentionStep work(device, p, step, position_class);
      const size_t columns = p.lengths.size() * 3;
      const size_t value = device.ops().activation_bytes();
      stream->copy(captured.control.data(), work.control.data(), columns * sizeof(ControlRow));
      stream->copy(captured.k.data(), work.k.data(), columns * p.kv_row() * value);
      stream->copy(captured.v.data(), work.v.data(), columns * p.kv_row() * value);
      stream->copy(captured.q.data(), work.q.data(), columns * 2 * p.row() * value);
      graph->launch(*stream);
      stream->synchronize();
      scatter_columns(step, captured.out.read(), p.row(), got);
    }
    for (size_t lane = 0; lane < want.size(); ++lane)
      expect_same_bits(got[lane], want[lane], "replayed");
  }
}

template <auto run>
void as_activations_are(Device& device) {
  run(device, default_kv_dtype(device.kind()));
}
template <auto run>
void quantised(Device& device) {
  for (const KvDtype dtype : quantised_dtypes(device)) {
    run(device, dtype);
    if (testing::Test::HasFailure()) return;
  }
}

constexpr KernelCase kCases[] = {
    {"AttentionMatchesTheFp64Oracle", as_activations_are<matches_the_fp64_oracle>},
    {"AttentionOfSixteenDecodingLanesMatchesTheFp64Oracle",
     as_activations_are<decode_of_sixteen_lanes_matches_the_fp64_oracle>},
    {"AttentionOverLongContextsMatchesTheFp64Oracle",
     as_activations_are<long_contexts_match_the_fp64_oracle>},
    {"AttentionCutsChangeNoBit", as_activations_are<cuts_change_no_bit>},
    {"AttentionWidthsOfGeneratedStepsChangeNoBit",
     as_activations_are<widths_of_generated_steps_change_no_bit>},
    {"AttentionLanesDoNotDependOnEachOther", as_activations_are<lanes_do_not_depend_on_each_other>},
    {"AttentionCapturedGivesTheSameBitsAtEveryPosition",
     as_activations_are<a_captured_step_gives_the_same_bits_at_every_position>},
    {"QuantisedAttentionMatchesTheFp64Oracle", quantised<matches_the_fp64_oracle>},
    {"QuantisedAttentionOfSixteenDecodingLanesMatchesTheFp64Oracle",
     quantised<decode_of_sixteen_lanes_matches_the_fp64_oracle>},
    {"QuantisedAttentionOverLongContextsMatchesTheFp64Oracle",
     quantised<long_contexts_match_the_fp64_oracle>},
    {"QuantisedAttentionCutsChangeNoBit", quantised<cuts_change_no_bit>},
    {"QuantisedAttentionWidthsOfGeneratedStepsChangeNoBit",
     quantised<widths_of_generated_steps_change_no_bit>},
    {"QuantisedAttentionLanesDoNotDependOnEachOther", quantised<lanes_do_not_depend_on_each_other>},
    {"QuantisedAttentionCapturedGivesTheSameBitsAtEveryPosition",
     quantised<a_captured_step_gives_the_same_bits_at_every_position>},
};

}  // namespace

std::span<const KernelCase> attention_cases() {
  return kCases;
}

std::vector<NamedResult> attention_results(Device& device) {
  const KvDtype dtype = default_kv_dtype(device.kind());
  return {{"paged_attention of a prompt",
           run_attention(device, attention_problem(device, dtype, 8, 2, 128, {200}), {128},
                         PositionClass::prompt)[0]},
          {"paged_attention of decoding",
           run_attention(device, attention_problem(device, dtype, 6, 1, 64, {70, 90}), {1},
                         PositionClass::generated)[1]},
          {"paged_attention of a prompt, KV as int8",
           run_attention(device, attention_problem(device, KvDtype::int8, 8, 2, 128, {200}), {128},
                         PositionClass::prompt)[0]},
          {"paged_attention of decoding, KV as int8",
           run_attention(device, attention_problem(device, KvDtype::int8, 6, 1, 80, {70, 90}), {1},
                         PositionClass::generated)[1]}};
}

}  // namespace convoy::test
