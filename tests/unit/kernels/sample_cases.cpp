// Sampling against a full sort, token by token.
#include <algorithm>
#include <numeric>

#include "kernels/ops/gumbel.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kernel_cases.h"
#include "tests/unit/kernels/kernel_oracle.h"

namespace convoy::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kNoId = -7;

int32_t sorted_draw(const std::vector<float>& logits, const DrawRule& rule) {
  std::vector<int32_t> order;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (logits[static_cast<size_t>(id)] > -kInfinity) order.push_back(id);
  }
  if (order.empty()) return -1;
  const auto value = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return value(a) > value(b); });
  if (rule.greedy()) return order.front();
  const auto scaled = [&](int32_t id) {
    return draw::scaled_logit(value(id), value(order.front()), rule.temperature);
  };
  const auto mass = [&](int32_t id) { return draw::weight_mass(draw::exp_weight(scaled(id))); };
  if (rule.top_k > 0 && static_cast<size_t>(rule.top_k) < order.size())
    order.resize(static_cast<size_t>(rule.top_k));
  if (rule.top_p < 1.0) {
    const uint64_t all = std::accumulate(order.begin(), order.end(), uint64_t{0},
                                         [&](uint64_t sum, int32_t id) { return sum + mass(id); });
    const double limit = rule.top_p * static_cast<double>(all);
    size_t kept = 1;
    for (uint64_t sum = mass(order[0]); kept < order.size() && static_cast<double>(sum) < limit;)
      sum += mass(order[kept++]);
    order.resize(kept);
  }
  std::erase_if(order, [&](int32_t id) { return draw::exp_weight(scaled(id)) < rule.min_p; });
  const auto score = [&](int32_t id) {
    return draw::add(scaled(id), draw::gumbel_noise(rule.seed, rule.token_index, id));
  };
  return *std::min_element(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  });
}

struct Drawn {
  std::vector<int32_t> ids, drawn;
};

// Row r: `logits` by rules[r]; what lies beyond them is larger.
Drawn run_sample(Device& device, const std::vector<float>& logits,
                 const std::vector<DrawRule>& rules, bool captured = false) {
  const auto valid = static_cast<int>(logits.size());
  const auto rows = static_cast<int>(rules.size());
  const int stride = valid + 3;
  std::vector<float> all(static_cast<size_t>(rows) * static_cast<size_t>(stride), 1e9F);
  for (int r = 0; r < rows; ++r)
    std::copy(logits.begin(), logits.end(), all.begin() + ptrdiff_t{r} * stride);
  const DeviceArray<float> values(device, all);
  const DeviceArray<DrawRule> on_device(device, rules);
  const DeviceArray<int32_t> ids(device, std::vector<int32_t>(rules.size(), kNoId));
  const DeviceArray<int32_t> drawn(device, std::vector<int32_t>(rules.size(), kNoId));
  const auto stream = device.make_stream();
  const auto draw = [&] {
    device.ops().argmax(*stream, {values.data(), stride, rows, valid, ids.data()});
    device.ops().sample(*stream, {.logits = values.data(),
                                  .row_stride = stride,
                                  .rows = rows,
                                  .valid = valid,
                                  .rules = on_device.data(),
                                  .ids = ids.data(),
                                  .drawn = drawn.data()});
  };
  if (captured) {
    const auto graph = device.capture(*stream, draw);
    for (int i = 0; i < 2; ++i) graph->launch(*stream);
  } else {
    draw();
  }
  stream->synchronize();
  return {ids.read(), drawn.read()};
}

// From -spread to spread in steps: large ones make many equals.
std::vector<float> logits_in_steps(uint32_t seed, int count, float spread, float step) {
  Random random(seed);
  std::vector<float> logits;
  for (int i = 0; i < count; ++i)
    logits.push_back(std::round(random.uniform(-spread, spread) / step) * step);
  return logits;
}

std::vector<DrawRule> every_rule(int valid) {
  std::vector<DrawRule> rules;
  for (const int32_t top_k : {0, 1, 7, 300, 2500, 19'000}) {
    if (top_k >= valid) continue;
    for (const double top_p : {1.0, 0.95, 0.3, 0.0}) {
      for (const float min_p : {0.0F, 0.02F, 1.0F}) {
        for (const float temperature : {0.9F, 0.05F, 40.0F}) {
          rules.push_back({.top_p = top_p,
                           .seed = 0x9E3779B97F4A7C15U * (rules.size() + 1),
                           .token_index = rules.size() * 0x100000001U,
                           .temperature = temperature,
                           .min_p = min_p,
                           .top_k = top_k});
        }
      }
    }
  }
  return rules;
}

void expect_sorted_draws(Device& device, const std::vector<float>& logits,
                         const std::vector<DrawRule>& rules, bool captured = false) {
  constexpr size_t kRows = 27;
  for (size_t first = 0; first < rules.size(); first += kRows) {
    const std::vector<DrawRule> part(
        rules.begin() + static_cast<ptrdiff_t>(first),
        rules.begin() + static_cast<ptrdiff_t>(std::min(rules.size(), first + kRows)));
    const Drawn got = run_sample(device, logits, part, captured);
    for (size_t r = 0; r < part.size(); ++r) {
      const DrawRule& rule = part[r];
      EXPECT_EQ(got.drawn[r], sorted_draw(logits, rule))
          << logits.size() << " logits, temperature " << rule.temperature << ", top-k "
          << rule.top_k << ", top-p " << rule.top_p << ", min-p " << rule.min_p;
      EXPECT_EQ(got.ids[r], got.drawn[r]);
    }
  }
}

void sample_draws_what_a_full_sort_draws(Device& device) {
  for (const int valid : {1, 31, 1025, 5000, 20'001}) {
    for (const auto& [spread, step] :
         {std::pair{6.0F, 1.0F}, {20.0F, 0x1p-12F}, {0.5F, 0x1p-3F}, {300.0F, 0x1p-3F}}) {
      expect_sorted_draws(device,
                          logits_in_steps(static_cast<uint32_t>(valid) + 17, valid, spread, step),
                          every_rule(valid));
    }
  }
}

void sample_from_a_large_vocabulary(Device& device) {
  constexpr int kValid = 248'320;
  const std::vector<DrawRule> rules{
      {.seed = 1, .temperature = 1.0F},
      {.top_p = 0.95, .seed = 2, .temperature = 0.6F, .top_k = 20},
      {.top_p = 0.95, .seed = 3, .temperature = 1.5F},
      {.seed = 4, .token_index = 9, .temperature = 1.0F, .min_p = 0.05F},
      {.top_p = 0.5, .seed = 5, .temperature = 2.0F, .top_k = 100'000}};
  for (const float spread : {12.0F, 0.25F})
    expect_sorted_draws(device, logits_in_steps(5, kValid, spread, 0x1p-10F), rules);
}

// More tokens in one place of the order than a list of candidates holds.
void sample_from_equal_logits(Device& device) {
  constexpr int kValid = 30'000;
  std::vector<float> logits(kValid, -1.5F);
  logits[77] = logits[29'999] = 2.0F;
  std::vector<DrawRule> rules = every_rule(kValid);
  expect_sorted_draws(device, logits, rules);
  std::fill(logits.begin(), logits.end(), 0.0F);
  for (size_t i = 0; i < logits.size(); i += 2) logits[i] = -0.0F;
  expect_sorted_draws(device, logits, rules);
}

void sample_never_draws_masked_tokens(Device& device) {
  const std::vector<DrawRule> rules = every_rule(9);
  expect_sorted_draws(device, {kNan, -kInfinity, 1.0F, kNan, 0.5F, -kInfinity, 1.0F, -3.0F, kNan},
                      rules);
  expect_sorted_draws(device, {kNan, 2.0F, kInfinity, kNan, 0.5F, kInfinity, 1.0F, -3.0F, kNan},
                      rules);
  const Drawn none =
      run_sample(device, {kNan, -kInfinity, -kInfinity},
                 {{.temperature = 1.0F}, {.top_p = 0.9, .temperature = 1.0F, .top_k = 2}, {}});
  EXPECT_EQ(none.drawn, (std::vector<int32_t>{-1, -1, 1})) << "the greedy choice stands";
  EXPECT_EQ(none.ids, (std::vector<int32_t>{1, 1, 1})) << "argmax's";
}

void sample_leaves_greedy_rows_to_argmax(Device& device) {
  const Drawn got = run_sample(device, {1.0F, 3.0F, 3.0F, 2.0F},
                               {{}, {.top_p = 0.1, .seed = 9, .top_k = 1}, {.temperature = 0.01F}});
  EXPECT_EQ(got.drawn, (std::vector<int32_t>{1, 1, got.drawn[2]}));
  EXPECT_EQ(got.ids, got.drawn);
}

void sample_can_be_captured(Device& device) {
  if (device.kind() == DeviceKind::cpu) return;
  expect_sorted_draws(device, logits_in_steps(3, 5000, 8.0F, 0x1p-9F), every_rule(5000), true);
}

constexpr KernelCase kCases[] = {
    {"SampleDrawsWhatAFullSortDraws", sample_draws_what_a_full_sort_draws},
    {"SampleFromALargeVocabulary", sample_from_a_large_vocabulary},
    {"SampleFromEqualLogits", sample_from_equal_logits},
    {"SampleNeverDrawsMaskedTokens", sample_never_draws_masked_tokens},
    {"SampleLeavesGreedyRowsToArgmax", sample_leaves_greedy_rows_to_argmax},
    {"SampleCanBeCaptured", sample_can_be_captured},
};

}  // namespace

std::span<const KernelCase> sample_cases() {
  return kCases;
}

}  // namespace convoy::test
