#include "shared/stage/stage_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "shared/plan/weight_table.h"
#include "shared/stage/mlp.h"

namespace convoy {

StageExecutor::StageExecutor(Device& device, Stream& stream, const Checkpoint& checkpoint,
                             LayerRange layers, const StageLimits& limits,
                             const LoadProgress& progress)
    : device_(device), config_(checkpoint.config()), layers_(layers), limits_(limits) {
  memory_ = stage_memory(config_, layers_, limits_, device_.kind());
  allocate_workspace(stream);
  for (int layer = layers_.begin; layer < layers_.end; ++layer) {
    WeightSet weights(device_, stream, checkpoint, layer_weight_table(config_, layer),
                      fmt::format("layers.{}.", layer), progress);
    if (config_.layer_types[static_cast<size_t>(layer)] == LayerType::full_attention) {
      stack_.push_back(
          {std::move(weights), AttentionLayer(device_, config_, layer, limits_.page_groups)});
    } else {
      stack_.push_back(
          {std::move(weights), GdnLayer(device_, config_, layer, limits_.state_slots())});
    }
  }
  stream.synchronize();
  account();
}

void StageExecutor::allocate_workspace(Stream& stream) {
  const WorkspaceWidths w = workspace_widths(config_, layers_);
  const auto columns = static_cast<uint64_t>(limits_.max_columns());
  const auto area = [&](int64_t width, const char* label) {
    return device_.allocate(columns * static_cast<uint64_t>(width) * sizeof(float), label);
  };
  work_.residual = area(w.hidden, "residual");
  work_.normed = area(w.hidden, "normalised residual");
  work_.projection = area(w.projection, "projections");
  if (w.mixed > 0) work_.mixed = area(w.mixed, "convolution output");
  work_.attended = area(w.attended, "mixer output");
  if (w.gates > 0) work_.gates = area(w.gates, "GDN gates");
  work_.boundary = device_.allocate(
      static_cast<uint64_t>(limits_.lanes) * static_cast<uint64_t>(w.hidden) * sizeof(float),
      "last columns");
  work_.control = device_.allocate(columns * sizeof(ControlRow), "control block");

  std::vector<float> inv_freq;
  for (int i = 0; i < config_.rotary_dim / 2; ++i) {
    inv_freq.push_back(
        static_cast<float>(std::pow(config_.rope_theta, -2.0 * i / config_.rotary_dim)));
  }
  work_.inv_freq = device_.allocate(inv_freq.size() * sizeof(float), "rotary frequencies");
  stream.copy(work_.inv_freq.data(), inv_freq.data(), inv_freq.size() * sizeof(float));
  work_.rope_axis = device_.allocate(config_.rope_axis.size() * sizeof(int32_t), "rotary axes");
  stream.copy(work_.rope_axis.data(), config_.rope_axis.data(),
              config_.rope_axis.size() * sizeof(int32_t));
  stream.synchronize();

  for (int layer = layers_.begin; layer < layers_.end; ++layer) {
    if (config_.layer_types[static_cast<size_t>(layer)] != LayerType::full_attention) continue;
    block_tables_ =
        device_.allocate(static_cast<uint64_t>(limits_.lanes) *
                             static_cast<uint64_t>(limits_.pages_per_row()) * sizeof(int32_t),
                         "block tables");
    break;
  }
}

void StageExecutor::account() const {
  uint64_t weights = 0;
  uint64_t kv = 0;
  uint64_t state = 0;
  for (const Layer& layer : stack_) {
    weights += layer.weights.bytes();
    if (const auto* attention = std::get_if<AttentionLayer>(&layer.mixer))
      kv += attention->kv_bytes();
    if (const auto* gdn = std::get_if<GdnLayer>(&layer.mixer)) state += gdn->state_bytes();
  }
  const uint64_t workspace = work_.residual.bytes() + work_.normed.bytes() +
                             work_.projection.bytes() + work_.mixed.bytes() +
                             work_.attended.bytes() + work_.gates.bytes() + work_.boundary.bytes() +
                             work_.control.bytes() + work_.inv_freq.bytes() +
                             work_.rope_axis.bytes() + block_tables_.bytes();
  CONVOY_CHECK_OP(weights, ==, memory_.weight_bytes);
  CONVOY_CHECK_OP(kv, ==, memory_.kv_bytes);
  CONVOY_CHECK_OP(state, ==, memory_.state_bytes);
  CONVOY_CHECK_OP(workspace, ==, memory_.workspace_bytes);
}

void StageExecutor::set_page(Stream& stream, int32_t kv_row, int32_t block, int32_t page) {
  CONVOY_CHECK(kv_row >= 0 && kv_row < limits_.lanes && block >= 0 &&
                   block < limits_.pages_per_row() && page >= 0 && page < limits_.page_groups,
               fmt::format("row {} block {} page {}", kv_row, block, page));
  if (!block_tables_) return;
  stream.copy(block_tables_.as<int32_t>() + ptrdiff_t{kv_row} * limits_.pages_per_row() + block,
              &page, sizeof(page));
}

const float* StageExecutor::last_columns(Stream& stream, std::span<const int> valid_columns,
                                         int width) {
  const ptrdiff_t hidden = config_.hidden_size;
  for (size_t lane = 0; lane < valid_columns.size(); ++lane) {
    const ptrdiff_t column =
        static_cast<ptrdiff_t>(lane) * width + std::max(0, valid_columns[lane] - 1);
    stream.copy(work_.boundary.as<float>() + static_cast<ptrdiff_t>(lane) * hidden,
                residual() + column * hidden, static_cast<size_t>(hidden) * sizeof(float));
  }
  return work_.boundary.as<float>();
}

void StageExecutor::run(Stream& stream, std::span<const ControlRow> control, int lanes, int width,
                        PositionClass position_class) {
  CONVOY_CHECK_OP(control.size(), ==, static_cast<size_t>(lanes) * static_cast<size_t>(width));
  CONVOY_CHECK_OP(lanes * width, <=, limits_.max_columns());
  stream.copy(work_.control.data(), control.data(), control.size_bytes());
  const StepView step{work_.control.as<ControlRow>(), lanes, width, position_class};
  for (const Layer& layer : stack_) {
    if (const auto* attention = std::get_if<AttentionLayer>(&layer.mixer)) {
      attention->run(device_, stream, layer.weights, work_, step, block_tables_.as<int32_t>(),
                     limits_.pages_per_row());
    } else {
      std::get<GdnLayer>(layer.mixer).run(device_, stream, layer.weights, work_, step);
    }
    run_mlp(device_, stream, config_, layer.weights, work_, step.columns());
  }
}

}  // namespace convoy
