// Sequences that are written into a cache and read by attention, step by step.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops/scratch.h"
#include "tests/unit/kernels/device_array.h"
#include "tests/unit/kernels/kv_codec.h"
#include "tests/unit/kernels/sequence_steps.h"

namespace convoy::test {

/// Each lane's sequence: a context that is in the cache already, then tokens that ask.
struct AttentionProblem {
  int heads, kv_heads, head_dim;
  KvDtype dtype;
  bool gated = true;
  std::vector<int> lengths;   // tokens that ask
  std::vector<int> contexts;  // tokens before them
  int max_pages = 0;
  std::vector<int32_t> block_tables;        // page ids in random order
  std::vector<std::vector<float>> q, gate;  // per lane [length, heads, head_dim]
  std::vector<std::vector<float>> k, v;     // per lane [context + length, kv_heads, head_dim]
  size_t dim() const { return static_cast<size_t>(head_dim); }
  size_t row() const { return static_cast<size_t>(heads) * dim(); }
  size_t kv_row() const { return static_cast<size_t>(kv_heads) * dim(); }
};

inline AttentionProblem attention_problem(Device& device, KvDtype dtype, int heads, int kv_heads,
                                          int head_dim, const std::vector<int>& lengths,
                                          const std::vector<int>& contexts = {}) {
  Random random(static_cast<uint32_t>(heads * 100 + head_dim));
  AttentionProblem p{heads, kv_heads, head_dim, dtype, true, lengths, contexts,
                     0,     {},       {},       {},    {},   {}};
  p.contexts.resize(lengths.size(), 0);
  const auto values = [&](int tokens, size_t row, float limit) {
    return as_activations(device, random.floats(static_cast<size_t>(tokens) * row, -limit, limit));
  };
  for (size_t lane = 0; lane < lengths.size(); ++lane) {
    const int tokens = p.contexts[lane] + lengths[lane];
    p.max_pages = std::max(p.max_pages, tokens / kPageTokens + 2);
    p.q.push_back(values(lengths[lane], p.row(), 2.0F));
    p.gate.push_back(values(lengths[lane], p.row(), 4.0F));
    p.k.push_back(values(tokens, p.kv_row(), 2.0F));
    p.v.push_back(values(tokens, p.kv_row(), 2.0F));
  }
  p.block_tables.resize(lengths.size() * static_cast<size_t>(p.max_pages));
  std::iota(p.block_tables.begin(), p.block_tables.end(), 0);
  for (size_t i = p.block_tables.size() - 1; i > 0; --i) {
    std::swap(p.block_tables[i],
              p.block_tables[static_cast<size_t>(random.integer(0, static_cast<int>(i)))]);
  }
  return p;
}

/// Queries and gates travel as the projection makes them: per head, query then gate.
inline std::vector<float> interleave_heads(const std::vector<float>& q,
                                           const std::vector<float>& gate, size_t dim) {
  std::vector<float> both;
  for (size_t at = 0; at < q.size(); at += dim) {
    both.insert(both.end(), q.begin() + static_cast<ptrdiff_t>(at),
                q.begin() + static_cast<ptrdiff_t>(at + dim));
    both.insert(both.end(), gate.begin() + static_cast<ptrdiff_t>(at),
                gate.begin() + static_cast<ptrdiff_t>(at + dim));
  }
  return both;
}

/// The cache, and what else stays the same from step to step.
struct AttentionMemory {
  AttentionMemory(Device& device, const AttentionProblem& p)
      : k(device, empty_plane(p).bytes()),
        v(device, empty_plane(p).bytes()),
        tables(device, p.block_tables),
        scratch(device, std::vector<float>(
                            attention_scratch_bytes(
                                device.kind(), {p.heads, p.head_dim, p.max_pages * kPageTokens},
                                kMaxGeneratedColumns) /
                                sizeof(float),
                            kNan)),
        cache{k.data(), v.data(), tables.data(), p.max_pages, p.kv_heads, p.head_dim, p.dtype} {}

  static KvPlaneImage empty_plane(const AttentionProblem& p) {
    return {p.dtype, static_cast<int>(p.block_tables.size()), p.kv_heads, p.head_dim};
  }

  DeviceArray<uint8_t> k, v;
  DeviceArray<int32_t> tables;
  DeviceArray<float> scratch;
  KvPlanes cache;
};

/// What one step brings along.
struct AttentionStep {
  AttentionStep(Device& device, const AttentionProblem& p, const SequenceStep& step,
                PositionClass position_class)
      : control(device, control_of(p, step)),
        k(device, gather_columns(step, asking(p, p.k), p.kv_row(), 1e30F)),
        v(device, gather_columns(step, asking(p, p.v), p.kv_row(), 1e30F)),
        q(device, gather_columns(step, queries(p), 2 * p.row(), kNan)),
        out(output_activations(device,
                               p.lengths.size() * static_cast<size_t>(step.width) * p.row())),
        view{control.data(), static_cast<int>(p.lengths.size()), step.width, position_class} {}

  static std::vector<ControlRow> control_of(const AttentionProblem& p, const SequenceStep& step) {
    const std::vector<int> no_state(p.lengths.size(), -1);
    std::vector<ControlRow> rows = control_rows(step, no_state, no_state);
    for (size_t c = 0; c < rows.size(); ++c)
      rows[c].cache_position += p.contexts[c / static_cast<size_t>(step.width)];
    return rows;
  }
  static std::vector<std::vector<float>> asking(const AttentionProblem& p,
                                                const std::vector<std::vector<float>>& tokens) {
    std::vector<std::vector<float>> parts;
    for (size_t lane = 0; lane < tokens.size(); ++lane) {
      const auto skipped =
          static_cast<ptrdiff_t>(p.contexts[lane]) * static_cast<ptrdiff_t>(p.kv_row());
      parts.emplace_back(tokens[lane].begin() + skipped, tokens[lane].end());
    }
    return parts;
  }
  static std::vector<std::vector<float>> queries(const AttentionProblem& p) {
    std::vector<std::vector<float>> parts;
    for (size_t lane = 0; lane < p.q.size(); ++lane)
      parts.push_back(interleave_heads(p.q[lane], p.gate[lane], p.dim()));
    return parts;
  }

  void enqueue(Device& device, Stream& stream, const AttentionProblem& p,
               const AttentionMemory& memory) const {
    const auto kv_row = static_cast<ptrdiff_t>(p.kv_row());
    const auto row = static_cast<ptrdiff_t>(p.row());
    device.ops().kv_write(stream, {view, k.data(), v.data(), kv_row, kv_row, memory.cache});
    PagedAttentionArgs args;
    args.step = view;
    args.q = q.data();
    args.gate =
        p.gated ? activations_at(q.data(), p.head_dim, device.ops().activation_bytes()) : nullptr;
    args.q_column_stride = args.gate_column_stride = 2 * row;
    args.q_head_stride = args.gate_head_stride = ptrdiff_t{2} * p.head_dim;
    args.heads = p.heads;
    args.cache = memory.cache;
    args.out = out.data();
    args.scratch = memory.scratch.data();
    device.ops().paged_attention(stream, args);
  }

  DeviceArray<ControlRow> control;
  ActivationArray k, v, q, out;
  StepView view;
};

/// Stores every lane's context.
inline void fill_contexts(Device& device, Stream& stream, const AttentionProblem& p,
                          const AttentionMemory& memory) {
  for (size_t lane = 0; lane < p.contexts.size(); ++lane) {
    const int tokens = p.contexts[lane];
    if (tokens == 0) continue;
    std::vector<ControlRow> rows;
    for (int t = 0; t < tokens; ++t)
      rows.push_back({t, {t, t, t}, static_cast<int32_t>(lane), tokens, -1, -1});
    const auto kv_row = static_cast<ptrdiff_t>(p.kv_row());
    const auto context_of = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin(), all.begin() + tokens * kv_row);
    };
    const DeviceArray<ControlRow> control(device, rows);
    const ActivationArray k(device, context_of(p.k[lane])), v(device, context_of(p.v[lane]));
    device.ops().kv_write(stream, {{control.data(), 1, tokens, PositionClass::prompt},
                                   k.data(),
                                   v.data(),
                                   kv_row,
                                   kv_row,
                                   memory.cache});
    stream.synchronize();
  }
}

}  // namespace convoy::test
