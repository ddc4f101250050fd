#include "tests/unit/stage/stage_pipeline.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "shared/stage/open_device.h"

namespace convoy {

StagePipeline::StagePipeline(const std::filesystem::path& model, StagePipelineOptions options)
    : checkpoint_(Checkpoint::open(model, options.load_format)),
      options_(std::move(options)),
      device_(options_.device == "cpu"
                  ? make_cpu_device(
                        {.threads = options_.threads, .instruction_set = options_.instruction_set})
                  : open_device(options_.device, 0)),
      stream_(device_->make_stream()),
      root_(*device_, *stream_, checkpoint_, options_.limits, checkpoint_.config().vocab_size, {}),
      pages_(options_.limits.page_groups) {
  if (options_.stages.empty()) options_.stages = {{0, checkpoint_.config().num_layers}};
  for (const LayerRange layers : options_.stages) {
    executors_.push_back(std::make_unique<StageExecutor>(*device_, *stream_, checkpoint_, layers,
                                                         options_.limits, LoadProgress()));
    executors_.back()->prepare(*stream_, options_.graphs);
  }
  root_.prepare(*stream_);
}

void StagePipeline::step(std::span<Sequence* const> sequences, std::span<const int> columns,
                         std::span<const int32_t> ids, PositionClass position_class,
                         std::span<const int32_t> positions, const Observer& observer) {
  const Status planned = plan_step(sequences, columns, position_class, step_);
  CONVOY_CHECK(planned.ok(), planned.error());
  const auto total = static_cast<size_t>(step_.columns());
  if (!positions.empty()) {
    for (size_t c = 0; c < total; ++c) {
      for (size_t axis = 0; axis < 3; ++axis)
        step_.control[c].rope_position[axis] = positions[axis * total + c];
    }
  }
  // Dead columns embed token 0.
  std::vector<int32_t> padded(total, 0);
  size_t next = 0;
  for (size_t lane = 0; lane < sequences.size(); ++lane) {
    for (int i = 0; i < columns[lane]; ++i)
      padded[lane * static_cast<size_t>(step_.width) + static_cast<size_t>(i)] = ids[next++];
  }
  const void* input = nullptr;
  const size_t values = total * static_cast<size_t>(config().hidden_size);
  for (size_t s = 0; s < executors_.size(); ++s) {
    StageExecutor& executor = *executors_[s];
    if (s == 0) {
      root_.embed(*stream_, padded, executor.residual());
    } else {
      stream_->copy(executor.residual(), input, total * executor.column_bytes());
    }
    executor.run(*stream_, {.control = step_.control,
                            .deltas = step_.deltas,
                            .lanes = step_.lane_count(),
                            .width = step_.width,
                            .position_class = position_class});
    input = executor.residual();
    if (observer) observer(s, read_activations(input, values));
  }
}

std::vector<float> StagePipeline::logits(std::span<const int> columns) {
  const auto vocab = static_cast<size_t>(config().vocab_size);
  std::vector<float> out;
  for (const int column : columns) {
    const size_t bytes = executors_.back()->column_bytes();
    stream_->copy(root_.last_columns(),
                  static_cast<const std::byte*>(executors_.back()->residual()) +
                      static_cast<size_t>(column) * bytes,
                  bytes);
    static_cast<void>(root_.choose(*stream_, 1));
    out.resize(out.size() + vocab);
    stream_->copy(out.data() + out.size() - vocab, root_.logits(), vocab * sizeof(float));
    stream_->synchronize();
  }
  return out;
}

int32_t StagePipeline::choose(int column) {
  const auto values = logits({&column, 1});
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<float> StagePipeline::read_activations(const void* from, size_t values) {
  const size_t bytes = device_->ops().activation_bytes();
  std::vector<std::byte> raw(values * bytes);
  stream_->copy(raw.data(), from, raw.size());
  stream_->synchronize();
  std::vector<float> out(values);
  if (bytes == sizeof(float)) {
    std::memcpy(out.data(), raw.data(), raw.size());
    return out;
  }
  for (size_t i = 0; i < values; ++i) {
    uint16_t bf16 = 0;
    std::memcpy(&bf16, raw.data() + i * sizeof(bf16), sizeof(bf16));
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
  }
  return out;
}

std::vector<LayerRange> layer_by_layer(int layers) {
  std::vector<LayerRange> stages;
  for (int layer = 0; layer < layers; ++layer) stages.push_back({layer, layer + 1});
  return stages;
}

}  // namespace convoy
