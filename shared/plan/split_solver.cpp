#include "shared/plan/split_solver.h"

#include <algorithm>

#include "base/check.h"

namespace convoy {
namespace {

__extension__ using Wide = unsigned __int128;

// A load: part / whole, compared exactly. The default is more than any load.
struct Share {
  uint64_t part = 1;
  uint64_t whole = 0;
  friend bool operator<(const Share& a, const Share& b) {
    return Wide{a.part} * b.whole < Wide{b.part} * a.whole;
  }
};

class Solver {
 public:
  explicit Solver(const SplitProblem& problem)
      : problem_(problem),
        layers_(problem.layers),
        page_sums_(sums(problem.page_bytes)),
        load_sums_(sums(problem.layer_load)) {
    fixed_.resize(static_cast<size_t>(problem.stages * layers_ * (layers_ + 1)));
    for (int stage = 0; stage < problem.stages; ++stage) {
      for (int begin = 0; begin < layers_; ++begin) {
        for (int end = begin + 1; end <= layers_; ++end)
          fixed_[at(stage, {begin, end})] = problem.fixed_bytes(stage, {begin, end});
      }
    }
  }

  Split solve() {
    const int most = most_pages();
    Split split;
    split.fits = most >= problem_.least_page_groups;
    split.page_groups = split.fits ? most : problem_.least_page_groups;
    pages_ = split.page_groups;
    memory_counts_ = split.fits;
    split.stages = least_loaded();
    return split;
  }

 private:
  static std::vector<uint64_t> sums(const std::vector<uint64_t>& values) {
    std::vector<uint64_t> result{0};
    for (const uint64_t value : values) result.push_back(result.back() + value);
    return result;
  }
  static uint64_t sum(const std::vector<uint64_t>& sums, LayerRange range) {
    return sums[static_cast<size_t>(range.end)] - sums[static_cast<size_t>(range.begin)];
  }
  size_t at(int stage, LayerRange range) const {
    return static_cast<size_t>((stage * layers_ + range.begin) * (layers_ + 1) + range.end);
  }
  uint64_t available(int stage) const {
    return problem_.available_bytes[static_cast<size_t>(stage)];
  }

  // Page groups that a stage of this range holds; -1: not even without any.
  int pages_of(int stage, LayerRange range) const {
    const uint64_t fixed = fixed_[at(stage, range)];
    if (fixed > available(stage)) return -1;
    const uint64_t page = sum(page_sums_, range);
    const auto most = static_cast<uint64_t>(problem_.most_page_groups);
    return static_cast<int>(page == 0 ? most : std::min(most, (available(stage) - fixed) / page));
  }

  Share load_of(int stage, LayerRange range) const {
    if (memory_counts_ && pages_of(stage, range) < pages_) return {};
    const uint64_t rate = problem_.rate[static_cast<size_t>(stage)];
    if (!problem_.layer_load.empty())
      return {sum(load_sums_, range) + (stage == 0 ? problem_.first_load : 0), rate};
    return {fixed_[at(stage, range)] + static_cast<uint64_t>(pages_) * sum(page_sums_, range),
            rate};
  }

  // Both recursions look at the stages from `stage` on, which own the layers from `begin` on:
  // every stage before has at least one layer, and so has every one behind.
  int last_end(int stage) const { return layers_ - (problem_.stages - 1 - stage); }

  int most_pages() const {
    std::vector<int> rest(static_cast<size_t>(layers_) + 1, -1);
    rest.back() = problem_.most_page_groups;
    for (int stage = problem_.stages - 1; stage >= 0; --stage) {
      std::vector<int> here(rest.size(), -1);
      for (int begin = stage; begin < last_end(stage); ++begin) {
        int& best = here[static_cast<size_t>(begin)];
        for (int end = begin + 1; end <= last_end(stage); ++end) {
          best = std::max(best,
                          std::min(pages_of(stage, {begin, end}), rest[static_cast<size_t>(end)]));
        }
      }
      rest = std::move(here);
    }
    return rest.front();
  }

  std::vector<LayerRange> least_loaded() const {
    std::vector<std::vector<Share>> rest(static_cast<size_t>(problem_.stages) + 1,
                                         std::vector<Share>(static_cast<size_t>(layers_) + 1));
    rest.back().back() = {0, 1};
    for (int stage = problem_.stages - 1; stage >= 0; --stage) {
      const auto& behind = rest[static_cast<size_t>(stage) + 1];
      for (int begin = stage; begin < last_end(stage); ++begin) {
        Share& best = rest[static_cast<size_t>(stage)][static_cast<size_t>(begin)];
        for (int end = begin + 1; end <= last_end(stage); ++end) {
          best = std::min(best,
                          std::max(load_of(stage, {begin, end}), behind[static_cast<size_t>(end)]));
        }
      }
    }
    const Share bound = rest.front().front();
    std::vector<LayerRange> ranges;
    for (int begin = 0; begin < layers_; begin = ranges.back().end) {
      const auto stage = static_cast<int>(ranges.size());
      const auto& behind = rest[static_cast<size_t>(stage) + 1];
      int end = begin + 1;
      while (bound < behind[static_cast<size_t>(end)] || bound < load_of(stage, {begin, end})) {
        ++end;
        CONVOY_CHECK_OP(end, <=, layers_);
      }
      ranges.push_back({begin, end});
    }
    return ranges;
  }

  const SplitProblem& problem_;
  int layers_;
  std::vector<uint64_t> page_sums_;
  std::vector<uint64_t> load_sums_;
  std::vector<uint64_t> fixed_;
  int pages_ = 0;
  bool memory_counts_ = true;
};

}  // namespace

Split solve_split(const SplitProblem& problem) {
  const auto stages = static_cast<size_t>(problem.stages);
  CONVOY_CHECK_OP(problem.stages, >=, 1);
  CONVOY_CHECK_OP(problem.stages, <=, problem.layers);
  CONVOY_CHECK_OP(problem.page_bytes.size(), ==, static_cast<size_t>(problem.layers));
  CONVOY_CHECK_OP(problem.available_bytes.size(), ==, stages);
  CONVOY_CHECK_OP(problem.rate.size(), ==, stages);
  CONVOY_CHECK(std::find(problem.rate.begin(), problem.rate.end(), 0U) == problem.rate.end(),
               "every stage has a rate");
  CONVOY_CHECK_OP(problem.least_page_groups, <=, problem.most_page_groups);
  return Solver(problem).solve();
}

}  // namespace convoy
