// Runs sequences of different lengths, one per lane, through an operation in steps of a given
// width.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/ops/step.h"

namespace convoy::test {

/// One step: which tokens of each lane's sequence are its columns.
struct SequenceStep {
  int width = 0;
  std::vector<int> first;  ///< position of each lane's first column
  std::vector<int> valid;  ///< live columns of each lane; 0 once its sequence is over
  int index = 0;
};

/// Cuts sequences of `lengths` tokens into steps whose widths are `widths` in turn, repeated as
/// needed.
inline std::vector<SequenceStep> cut_into_steps(const std::vector<int>& lengths,
                                                const std::vector<int>& widths) {
  std::vector<SequenceStep> steps;
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  for (int position = 0; position < longest;) {
    SequenceStep step;
    step.index = static_cast<int>(steps.size());
    step.width = widths[steps.size() % widths.size()];
    for (const int length : lengths) {
      step.first.push_back(position);
      step.valid.push_back(std::clamp(length - position, 0, step.width));
    }
    position += step.width;
    steps.push_back(step);
  }
  return steps;
}

/// Control rows of a step. `sources` and `destinations` are recurrent-state slots; KV rows are the
/// lanes' numbers.
inline std::vector<ControlRow> control_rows(const SequenceStep& step,
                                            const std::vector<int>& sources,
                                            const std::vector<int>& destinations) {
  std::vector<ControlRow> rows;
  for (size_t lane = 0; lane < step.first.size(); ++lane) {
    for (int i = 0; i < step.width; ++i) {
      const int position = step.first[lane] + i;
      rows.push_back({position,
                      {position, position, position},
                      static_cast<int32_t>(lane),
                      step.valid[lane],
                      sources[lane],
                      destinations[lane]});
    }
  }
  return rows;
}

/// Lays the tokens of a step out as [lanes * width, row]: tokens[lane] is [length, row]. Dead
/// columns get `filler`.
inline std::vector<float> gather_columns(const SequenceStep& step,
                                         const std::vector<std::vector<float>>& tokens, size_t row,
                                         float filler) {
  std::vector<float> columns(step.first.size() * static_cast<size_t>(step.width) * row, filler);
  for (size_t lane = 0; lane < tokens.size(); ++lane) {
    const float* from = tokens[lane].data() + static_cast<size_t>(step.first[lane]) * row;
    if (step.valid[lane] == 0) continue;
    std::copy_n(from, static_cast<size_t>(step.valid[lane]) * row,
                columns.data() + lane * static_cast<size_t>(step.width) * row);
  }
  return columns;
}

/// Appends the live columns of a step's output to each lane's sequence; fails the test when a dead
/// column is not zero.
inline void scatter_columns(const SequenceStep& step, const std::vector<float>& columns, size_t row,
                            std::vector<std::vector<float>>& tokens) {
  for (size_t lane = 0; lane < tokens.size(); ++lane) {
    const float* from = columns.data() + lane * static_cast<size_t>(step.width) * row;
    const size_t live = static_cast<size_t>(step.valid[lane]) * row;
    tokens[lane].insert(tokens[lane].end(), from, from + live);
    for (size_t i = live; i < static_cast<size_t>(step.width) * row; ++i) {
      ASSERT_EQ(from[i], 0.0F) << "dead column " << i / row << " of lane " << lane
                               << " is not zero";
    }
  }
}

}  // namespace convoy::test
