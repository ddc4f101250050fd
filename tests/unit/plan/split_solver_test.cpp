#include "shared/plan/split_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace convoy {
namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 60;

SplitProblem problem_of(int layers, int stages) {
  SplitProblem p;
  p.layers = layers;
  p.stages = stages;
  return p;
}

// Bytes beside pages: a sum over the layers, the widest layer once (workspace), the stage's own.
struct Costs {
  std::vector<uint64_t> layer, width, stage;
  uint64_t operator()(int s, LayerRange range) const {
    uint64_t bytes = stage[static_cast<size_t>(s)], widest = 0;
    for (int l = range.begin; l < range.end; ++l) {
      bytes += layer[static_cast<size_t>(l)];
      widest = std::max(widest, width[static_cast<size_t>(l)]);
    }
    return bytes + widest;
  }
};

// Everything that counts for one cut, worked out from the problem's words alone.
struct Verdict {
  int pages = 0;  // -1: does not fit at all
  uint64_t load = 0, rate = 1;
  std::vector<LayerRange> cut;
};

uint64_t page_bytes_of(const SplitProblem& p, LayerRange range) {
  uint64_t bytes = 0;
  for (int l = range.begin; l < range.end; ++l) bytes += p.page_bytes[static_cast<size_t>(l)];
  return bytes;
}

int pages_of(const SplitProblem& p, const std::vector<LayerRange>& cut) {
  for (int pages = p.most_page_groups; pages >= 0; --pages) {
    bool holds = true;
    for (size_t s = 0; s < cut.size(); ++s) {
      holds &= p.fixed_bytes(static_cast<int>(s), cut[s]) +
                   static_cast<uint64_t>(pages) * page_bytes_of(p, cut[s]) <=
               p.available_bytes[s];
    }
    if (holds) return pages;
  }
  return -1;
}

void set_load(const SplitProblem& p, int pages, Verdict& v) {
  for (size_t s = 0; s < v.cut.size(); ++s) {
    uint64_t load = 0;
    if (p.layer_load.empty()) {
      load = p.fixed_bytes(static_cast<int>(s), v.cut[s]) +
             static_cast<uint64_t>(pages) * page_bytes_of(p, v.cut[s]);
    } else {
      load = s == 0 ? p.first_load : 0;
      for (int l = v.cut[s].begin; l < v.cut[s].end; ++l)
        load += p.layer_load[static_cast<size_t>(l)];
    }
    if (s == 0 || load * v.rate > v.load * p.rate[s]) {
      v.load = load;
      v.rate = p.rate[s];
    }
  }
}

template <typename Visit>
void visit_cuts(int layers, int stages, std::vector<LayerRange>& cut, const Visit& visit) {
  const int begin = cut.empty() ? 0 : cut.back().end;
  if (static_cast<int>(cut.size()) == stages) {
    if (begin == layers) visit(cut);
    return;
  }
  for (int end = begin + 1; end <= layers; ++end) {
    cut.push_back({begin, end});
    visit_cuts(layers, stages, cut, visit);
    cut.pop_back();
  }
}

// Tries every cut, those with fewer layers in earlier stages first: only a better one replaces.
Split brute_force(const SplitProblem& p) {
  std::vector<Verdict> all;
  std::vector<LayerRange> cut;
  visit_cuts(p.layers, p.stages, cut, [&](const std::vector<LayerRange>& c) {
    all.push_back({pages_of(p, c), 0, 1, c});
  });
  int most = -1;
  for (const Verdict& v : all) most = std::max(most, v.pages);
  const bool fits = most >= p.least_page_groups;
  const int pages = fits ? most : p.least_page_groups;
  const Verdict* best = nullptr;
  for (Verdict& v : all) {
    if (fits && v.pages < pages) continue;
    set_load(p, pages, v);
    if (best == nullptr || v.load * best->rate < best->load * v.rate) best = &v;
  }
  return {fits, pages, best->cut};
}

TEST(SplitSolver, EqualsTheBestOfAllCutsOnTenThousandRandomProblems) {
  std::mt19937 random(11);
  const auto below = [&](uint64_t n) { return random() % n; };
  int fitting = 0, limited = 0, by_load = 0;
  for (int round = 0; round < 10'000; ++round) {
    const int layers = static_cast<int>(1 + below(8));
    const int stages = static_cast<int>(1 + below(static_cast<uint64_t>(layers)));
    // Small scales make ties; every third layer or so has no KV.
    const uint64_t scale = round % 3 == 0 ? 3 : 1000;
    Costs costs;
    SplitProblem p = problem_of(layers, stages);
    for (int l = 0; l < layers; ++l) {
      costs.layer.push_back(below(scale));
      costs.width.push_back(below(scale));
      p.page_bytes.push_back(below(3) == 0 ? 0 : below(scale / 2 + 1));
    }
    const bool equal_devices = below(2) == 0;
    for (int s = 0; s < stages; ++s) {
      costs.stage.push_back(s == 0 ? below(2 * scale) : below(3));
      const uint64_t available = below(8) == 0 ? kPlenty : below(12 * scale);
      p.available_bytes.push_back(equal_devices && s > 0 ? p.available_bytes[0] : available);
      p.rate.push_back(1 + below(equal_devices ? 1 : 4));
    }
    p.fixed_bytes = costs;
    p.most_page_groups = static_cast<int>(below(20));
    p.least_page_groups = static_cast<int>(below(static_cast<uint64_t>(p.most_page_groups) + 1));
    if (below(2) == 0) {
      for (int l = 0; l < layers; ++l) p.layer_load.push_back(below(scale));
      p.first_load = below(2 * scale);
      ++by_load;
    }
    const Split best = brute_force(p);
    ASSERT_EQ(solve_split(p).page_groups, best.page_groups) << "round " << round;
    ASSERT_EQ(solve_split(p), best) << "round " << round;
    fitting += best.fits ? 1 : 0;
    limited += best.fits && best.page_groups < p.most_page_groups ? 1 : 0;
  }
  // Every kind of problem came up often.
  EXPECT_GT(fitting, 2000);
  EXPECT_LT(fitting, 8000);
  EXPECT_GT(limited, 1000);
  EXPECT_GT(by_load, 4000);
}

// No device limits anything: only the loads count.
Split by_load(std::vector<uint64_t> loads, uint64_t first, int stages) {
  SplitProblem p = problem_of(static_cast<int>(loads.size()), stages);
  p.fixed_bytes = [](int, LayerRange) { return uint64_t{0}; };
  p.page_bytes.assign(loads.size(), 0);
  p.available_bytes.assign(static_cast<size_t>(stages), kPlenty);
  p.rate.assign(static_cast<size_t>(stages), 1);
  p.layer_load = std::move(loads);
  p.first_load = first;
  return solve_split(p);
}

TEST(SplitSolver, TiesLightenEarlierStages) {
  EXPECT_EQ(by_load({1, 1, 1, 1, 1}, 0, 2).stages, (std::vector<LayerRange>{{0, 2}, {2, 5}}));
  EXPECT_EQ(by_load({1, 1, 1, 1, 1}, 0, 3).stages,
            (std::vector<LayerRange>{{0, 1}, {1, 3}, {3, 5}}));
}

TEST(SplitSolver, RootBytesCountForTheFirstStage) {
  EXPECT_EQ(by_load({10, 10, 10, 10}, 20, 2).stages, (std::vector<LayerRange>{{0, 1}, {1, 4}}));
  EXPECT_EQ(by_load({10, 10, 10, 10}, 1000, 2).stages, (std::vector<LayerRange>{{0, 1}, {1, 4}}));
}

TEST(SplitSolver, AsManyStagesAsLayers) {
  EXPECT_EQ(by_load({5, 0, 7}, 1, 3).stages, (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}}));
}

TEST(SplitSolver, MoreStagesThanLayersIsABrokenInvariant) {
  EXPECT_DEATH(by_load({5, 7}, 0, 3), "stages");
  EXPECT_DEATH(by_load({5, 7}, 0, 0), "stages");
}

// Pages come before balance: the even cut would leave the small device no room for them.
TEST(SplitSolver, ASmallDeviceGetsFewerLayers) {
  SplitProblem p = problem_of(6, 2);
  p.fixed_bytes = [](int, LayerRange range) { return uint64_t{100} * uint64_t(range.size()); };
  p.page_bytes.assign(6, 1);
  p.available_bytes = {400, 1000};
  p.rate = {1, 1};
  p.most_page_groups = 1000;
  const Split split = solve_split(p);
  EXPECT_EQ(split.stages, (std::vector<LayerRange>{{0, 2}, {2, 6}}));
  EXPECT_EQ(split.page_groups, 100);
}

// Not a limit that a busy machine could fail: the time is for the test report.
TEST(SplitSolver, SolvesALargeModel) {
  SplitProblem p = problem_of(64, 8);
  p.fixed_bytes = [](int, LayerRange range) { return uint64_t{1000} * uint64_t(range.size()); };
  for (int l = 0; l < 64; ++l) p.page_bytes.push_back(l % 4 == 3 ? 10 : 0);
  p.available_bytes.assign(8, 20'000);
  p.rate.assign(8, 1);
  p.most_page_groups = 1 << 20;
  const auto begin = std::chrono::steady_clock::now();
  const Split split = solve_split(p);
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  RecordProperty("microseconds", std::to_string(time.count()));
  EXPECT_EQ(split.page_groups, (20'000 - 8'000) / 20);
  EXPECT_EQ(split.stages.size(), 8U);
}

}  // namespace
}  // namespace convoy
