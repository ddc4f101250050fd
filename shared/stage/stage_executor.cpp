#include "shared/stage/stage_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "shared/plan/weight_table.h"
#include "shared/stage/mlp.h"

namespace convoy {

StageExecutor::StageExecutor(Device& device, Stream& stream, const Checkpoint& checkpoint,
                             LayerRange layers, const StageLimits& limits,
                             const LoadProgress& progress)
    : device_(device), config_(checkpoint.config()), layers_(layers), limits_(limits) {
  CONVOY_CHECK(has_kv_dtype(device_.kind(), limits_.kv_dtype), kv_dtype_name(limits_.kv_dtype));
  memory_ = stage_memory(config_, layers_, limits_, device_.kind());
  choose_products(stream);
  allocate_workspace(stream);
  WeightLoader loader(device_, stream, checkpoint, progress);
  for (int layer = layers_.begin; layer < layers_.end; ++layer) {
    WeightSet weights(loader, layer_weight_table(config_, layer), fmt::format("layers.{}.", layer));
    if (config_.layer_types[static_cast<size_t>(layer)] == LayerType::full_attention) {
      stack_.push_back({std::move(weights), AttentionLayer(device_, config_, layer,
                                                           limits_.page_groups, limits_.kv_dtype)});
    } else {
      stack_.push_back(
          {std::move(weights), GdnLayer(device_, config_, layer, limits_.state_slots())});
    }
  }
  loader.finish();
  stream.synchronize();
  account();
  if (limits_.host_pages + limits_.host_slots > 0)
    host_cache_.emplace(device_, config_, layers_, limits_);
  moved_states_ = device_.allocate_host(LayerStateMover::kBufferBytes, "saved states");
}

void StageExecutor::allocate_workspace(Stream& stream) {
  const WorkspaceWidths w = workspace_widths(config_, layers_);
  work_.activation_bytes = device_.ops().activation_bytes();
  work_.padded_columns = workspace_columns(limits_, device_.kind());
  const auto columns = static_cast<uint64_t>(work_.padded_columns);
  const auto area = [&](int64_t width, size_t value_bytes, const char* label) {
    return device_.allocate(columns * static_cast<uint64_t>(width) * value_bytes, label);
  };
  const size_t activation = work_.activation_bytes;
  work_.residual = area(w.hidden, activation, "residual");
  work_.normed = area(w.hidden, activation, "normalised residual");
  work_.projection = area(w.projection, activation, "projections");
  if (w.mixed > 0) work_.mixed = area(w.mixed, activation, "convolution output");
  work_.attended = area(w.attended, activation, "mixer output");
  if (w.gates > 0) work_.gates = area(w.gates, sizeof(float), "GDN gates");
  work_.boundary =
      device_.allocate(static_cast<uint64_t>(limits_.lanes) * column_bytes(), "last columns");
  work_.control = device_.allocate(columns * sizeof(ControlRow), "control block");
  if (const uint64_t bytes = scratch_bytes(config_, layers_, limits_, device_.kind()); bytes > 0)
    work_.scratch = device_.allocate(bytes, "scratch of operations");

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
    work_.deltas = device_.allocate(
        static_cast<uint64_t>(limits_.max_deltas()) * sizeof(BlockTableDelta), "table changes");
    break;
  }
  staging_ = std::make_unique<HostStaging>(
      device_,
      static_cast<size_t>(limits_.max_columns()) * sizeof(ControlRow) +
          static_cast<size_t>(limits_.max_deltas()) * sizeof(BlockTableDelta),
      "staged steps");
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
  const uint64_t workspace =
      work_.residual.bytes() + work_.normed.bytes() + work_.projection.bytes() +
      work_.mixed.bytes() + work_.attended.bytes() + work_.gates.bytes() + work_.boundary.bytes() +
      work_.control.bytes() + work_.deltas.bytes() + work_.scratch.bytes() +
      work_.inv_freq.bytes() + work_.rope_axis.bytes() + block_tables_.bytes();
  CONVOY_CHECK_OP(weights, ==, memory_.weight_bytes);
  CONVOY_CHECK_OP(kv, ==, memory_.kv_bytes);
  CONVOY_CHECK_OP(state, ==, memory_.state_bytes);
  CONVOY_CHECK_OP(workspace, ==, memory_.workspace_bytes);
}

// Takes memory for a while: before everything else, since in the end there may be none left.
void StageExecutor::choose_products(Stream& stream) const {
  std::set<std::pair<int, int>> products;
  for (int layer = layers_.begin; layer < layers_.end; ++layer) {
    for (const WeightSpec& spec : layer_weight_table(config_, layer)) {
      if (spec.form == WeightForm::linear) products.emplace(spec.out_features, spec.in_features);
    }
  }
  std::vector<WarmUpShape> shapes;
  for (const auto& [out, in] : products)
    shapes.push_back(
        {.out_features = out, .in_features = in, .rows = limits_.prefill_chunk_tokens});
  device_.ops().warm_up(stream, shapes.data(), static_cast<int>(shapes.size()));
}

void StageExecutor::prepare(Stream& stream, bool graphs) {
  if (device_.kind() == DeviceKind::cpu) return;
  // Dead columns: every kernel runs, no state is touched.
  const int chunk = limits_.prefill_chunk_tokens;
  const std::vector<ControlRow> dead(static_cast<size_t>(limits_.max_columns()),
                                     ControlRow{0, {0, 0, 0}, 0, 0, -1, 0});
  const auto columns = [&](int count) {
    return std::span<const ControlRow>(dead).first(static_cast<size_t>(count));
  };
  const BlockTableDelta unchanged{0, 0, 0};
  run(stream, {.control = columns(chunk),
               .deltas = {&unchanged, 1},
               .lanes = 1,
               .width = chunk,
               .position_class = PositionClass::prompt});
  for (int lanes = 1; lanes <= limits_.lanes; ++lanes) {
    run(stream, {.control = columns(lanes),
                 .deltas = {},
                 .lanes = lanes,
                 .width = 1,
                 .position_class = PositionClass::generated});
  }
  last_columns(stream, std::vector<int>(static_cast<size_t>(limits_.lanes), 1), 1);
  stream.synchronize();
  if (!graphs || !device_.supports_graphs()) return;
  chunk_graph_ = capture(stream, view(1, chunk, PositionClass::prompt));
  for (int lanes = 1; lanes <= limits_.lanes; ++lanes) {
    decode_graphs_[static_cast<size_t>(lanes)] =
        capture(stream, view(lanes, 1, PositionClass::generated));
  }
}

std::unique_ptr<Graph> StageExecutor::capture(Stream& stream, const StepView& step) const {
  return device_.capture(stream, [&] { run_layers(stream, step); });
}

void StageExecutor::stage(Stream& stream, std::span<const ControlRow> control,
                          std::span<const BlockTableDelta> deltas) {
  CONVOY_CHECK_OP(deltas.size(), <=, static_cast<size_t>(limits_.max_deltas()));
  for (const BlockTableDelta& delta : deltas) {
    CONVOY_CHECK(delta.kv_row >= 0 && delta.kv_row < limits_.lanes && delta.block >= 0 &&
                     delta.block < limits_.pages_per_row() && delta.page >= 0 &&
                     delta.page < limits_.page_groups,
                 fmt::format("row {} block {} page {}", delta.kv_row, delta.block, delta.page));
  }
  std::byte* const slot = staging_->begin();
  if (!control.empty()) {
    std::memcpy(slot, control.data(), control.size_bytes());
    stream.copy(work_.control.data(), slot, control.size_bytes());
  }
  if (!deltas.empty() && block_tables_) {
    std::byte* const staged = slot + control.size_bytes();
    std::memcpy(staged, deltas.data(), deltas.size_bytes());
    stream.copy(work_.deltas.data(), staged, deltas.size_bytes());
    device_.ops().update_block_tables(stream, {.deltas = work_.deltas.as<BlockTableDelta>(),
                                               .count = static_cast<int>(deltas.size()),
                                               .tables = block_tables_.as<int32_t>(),
                                               .max_pages_per_row = limits_.pages_per_row()});
  }
}

void StageExecutor::update_tables(Stream& stream, std::span<const BlockTableDelta> deltas) {
  stage(stream, {}, deltas);
  staging_->end(stream);
}

void StageExecutor::move(Stream& stream, StepKind kind, std::span<const BlockTableDelta> deltas) {
  if (kind == StepKind::tables) update_tables(stream, deltas);
  for (const BlockTableDelta& delta : deltas) {
    if (kind == StepKind::copy_pages) copy_page(stream, delta.block, delta.page);
    if (kind == StepKind::copy_states) copy_state(stream, delta.block, delta.page);
  }
}

void StageExecutor::copy_page(Stream& stream, int32_t from, int32_t to) const {
  uint64_t offset = 0;
  for (const Layer& layer : stack_) {
    const auto* const attention = std::get_if<AttentionLayer>(&layer.mixer);
    if (attention == nullptr) continue;
    for (const bool is_key : {true, false}) {
      const auto at = [&](int32_t page) {
        if (page >= limits_.page_groups)
          return host_cache_->page(page - limits_.page_groups) + offset;
        return is_key ? attention->k_page(page) : attention->v_page(page);
      };
      stream.copy(at(to), at(from), attention->page_bytes());
      offset += attention->page_bytes();
    }
  }
}

void StageExecutor::copy_state(Stream& stream, int32_t from, int32_t to) const {
  uint64_t offset = 0;
  for (const Layer& layer : stack_) {
    const auto* const gdn = std::get_if<GdnLayer>(&layer.mixer);
    if (gdn == nullptr) continue;
    const auto in_host = [&](int32_t slot) {
      return host_cache_->state(slot - limits_.state_slots()) + offset;
    };
    const int32_t slots = limits_.state_slots();
    stream.copy(to < slots ? gdn->recurrent_slot(to) : in_host(to),
                from < slots ? gdn->recurrent_slot(from) : in_host(from), gdn_state_bytes(config_));
    offset += gdn_state_bytes(config_);
    stream.copy(to < slots ? gdn->conv_slot(to) : in_host(to),
                from < slots ? gdn->conv_slot(from) : in_host(from), conv_state_bytes(config_));
    offset += conv_state_bytes(config_);
  }
}

const void* StageExecutor::last_columns(Stream& stream, std::span<const int> valid_columns,
                                        int width) {
  if (width == 1) return work_.residual.data();
  const auto bytes = column_bytes();
  for (size_t lane = 0; lane < valid_columns.size(); ++lane) {
    const size_t column = lane * static_cast<size_t>(width) +
                          static_cast<size_t>(std::max(0, valid_columns[lane] - 1));
    stream.copy(work_.boundary.as<std::byte>() + lane * bytes,
                work_.residual.as<std::byte>() + column * bytes, bytes);
  }
  return work_.boundary.data();
}

void StageExecutor::run(Stream& stream, const StageStep& step) {
  const int columns = step.lanes * step.width;
  CONVOY_CHECK_OP(step.control.size(), ==, static_cast<size_t>(columns));
  CONVOY_CHECK_OP(columns, <=, limits_.max_columns());
  stage(stream, step.control, step.deltas);
  Graph* graph = nullptr;
  if (step.position_class == PositionClass::prompt) {
    if (step.lanes == 1 && step.width == limits_.prefill_chunk_tokens) graph = chunk_graph_.get();
  } else if (step.width == 1) {
    graph = decode_graphs_[static_cast<size_t>(step.lanes)].get();
  }
  if (graph != nullptr) {
    graph->launch(stream);
  } else {
    run_layers(stream, view(step.lanes, step.width, step.position_class));
  }
  // After the layers: a slot then stands for a whole step ahead.
  staging_->end(stream);
}

void StageExecutor::run_layers(Stream& stream, const StepView& step) const {
  for (const Layer& layer : stack_) {
    if (const auto* attention = std::get_if<AttentionLayer>(&layer.mixer)) {
      attention->run(device_, stream, layer.weights, work_, step, block_tables_.as<int32_t>(),
                     limits_.pages_per_row());
    } else {
      std::get<GdnLayer>(layer.mixer).run(device_, stream, layer.weights, work_, step);
    }
    run_mlp(device_, stream, config_, layer.weights, work_, step);
  }
}

void StageExecutor::check_place(const SequencePlace& place) const {
  CONVOY_CHECK(place.state_slot >= 0 && place.state_slot < limits_.state_slots(),
               fmt::format("state slot {}", place.state_slot));
  CONVOY_CHECK_OP(place.pages.size(), ==,
                  (size_t{place.tokens} + size_t{kPageTokens} - 1) / size_t{kPageTokens});
  for (const int32_t page : place.pages)
    CONVOY_CHECK(page >= 0 && page < limits_.page_groups, fmt::format("page group {}", page));
}

Result<std::vector<uint64_t>> StageExecutor::save_state(Stream& stream, const SequencePlace& place,
                                                        int fd, const StateLayout& layout) {
  check_place(place);
  stream.synchronize();
  LayerStateMover mover(stream, moved_states_);
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < stack_.size(); ++i) {
    const StateSection& section = layout.layers.at(static_cast<size_t>(layers_.begin) + i);
    const auto hash = std::visit(
        [&](const auto& mixer) { return mover.save(mixer, config_, place, fd, section); },
        stack_[i].mixer);
    if (!hash) return Error{hash.error()};
    hashes.push_back(hash.value());
  }
  return hashes;
}

Status StageExecutor::load_state(Stream& stream, const SequencePlace& place, int fd,
                                 const StateLayout& layout) {
  check_place(place);
  stream.synchronize();
  LayerStateMover mover(stream, moved_states_);
  for (size_t i = 0; i < stack_.size(); ++i) {
    const size_t layer = static_cast<size_t>(layers_.begin) + i;
    const Status status = std::visit(
        [&](const auto& mixer) {
          return mover.load(mixer, config_, place, fd, layout.layers.at(layer));
        },
        stack_[i].mixer);
    if (!status) return Error{fmt::format("layer {}: {}", layer, status.error())};
  }
  return {};
}

}  // namespace convoy
