// Time of one draw over a large vocabulary: median of rounds over 16 columns of random logits.
//
//   convoy_sampling_bench [vocab]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "coordinator/sampling/logprobs.h"
#include "coordinator/sampling/sampler.h"

namespace convoy {
namespace {

constexpr int kColumns = 16;
constexpr int kRounds = 15;

// Normal logits with a few that stand out, as a language model's do.
std::vector<std::vector<float>> make_columns(int vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 2.5F);
  std::vector<std::vector<float>> columns(kColumns, std::vector<float>(static_cast<size_t>(vocab)));
  for (auto& column : columns) {
    for (float& logit : column) logit = normal(random);
    for (int i = 0; i < 20; ++i)
      column[random() % column.size()] = 20.0F - 0.5F * static_cast<float>(i);
  }
  return columns;
}

template <typename Body>
void report(const char* name, const Body& body) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int column = 0; column < kColumns; ++column) body(column, round);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count() /
        kColumns);
  }
  std::sort(times.begin(), times.end());
  std::printf("%-44s %8.3f ms (fastest %.3f)\n", name, times[kRounds / 2], times[0]);
}

int run(int vocab) {
  const auto columns = make_columns(vocab);
  const auto bench = [&](const char* name, const SamplingOptions& options) {
    Sampler sampler(options, vocab);
    for (int32_t id = 0; id < std::min(vocab, 8000); ++id) sampler.observe(id);
    report(name, [&](int column, int round) {
      const auto drawn =
          sampler.draw(columns[static_cast<size_t>(column)], static_cast<uint64_t>(round));
      if (!drawn) std::abort();
    });
  };
  bench("greedy", {.greedy = true});
  bench("top_k 20, top_p 0.95", {.top_k = 20, .top_p = 0.95});
  bench("the same, presence 1.5, 8,000 tokens seen",
        {.top_k = 20, .top_p = 0.95, .presence_penalty = 1.5});
  bench("top_k 100,000", {.top_k = 100000});
  bench("temperature only", {.temperature = 0.8});
  bench("top_p 0.95", {.top_p = 0.95});
  bench("top_p 0.95, temperature 5 (flat)", {.temperature = 5.0, .top_p = 0.95});
  bench("min_p 0.05", {.min_p = 0.05});
  report("log-probabilities, top 20", [&](int column, int) {
    if (token_logprobs(columns[static_cast<size_t>(column)], vocab, 0, 20).top.empty())
      std::abort();
  });
  return 0;
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  return convoy::run(argc > 1 ? std::atoi(argv[1]) : 248320);
}
