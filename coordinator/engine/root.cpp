#include "coordinator/engine/root.h"

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/ops/op_set.h"
#include "shared/plan/weight_table.h"

namespace convoy {

Root::Root(Device& device, Stream& stream, const Checkpoint& checkpoint, const StageLimits& limits,
           int valid_vocab, const LoadProgress& progress)
    : device_(device),
      config_(checkpoint.config()),
      max_lanes_(limits.lanes),
      max_columns_(limits.max_columns()),
      valid_vocab_(valid_vocab),
      memory_(root_memory(config_, limits, device.kind())),
      weights_(device, stream, checkpoint, root_weight_table(config_), "", progress) {
  CONVOY_CHECK(valid_vocab_ >= 1 && valid_vocab_ <= config_.vocab_size,
               fmt::format("{} of {} ids", valid_vocab_, config_.vocab_size));
  const auto lanes = static_cast<size_t>(max_lanes_);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  token_ids_ = device.allocate(static_cast<size_t>(max_columns_) * sizeof(int32_t), "token ids");
  last_ = device.allocate(lanes * hidden * sizeof(float), "last columns");
  normed_ = device.allocate(lanes * hidden * sizeof(float), "normalised last columns");
  logits_ =
      device.allocate(lanes * static_cast<size_t>(config_.vocab_size) * sizeof(float), "logits");
  chosen_ = device.allocate(lanes * sizeof(int32_t), "chosen ids");
  CONVOY_CHECK_OP(weights_.bytes(), ==, memory_.weight_bytes);
  CONVOY_CHECK_OP(
      token_ids_.bytes() + last_.bytes() + normed_.bytes() + logits_.bytes() + chosen_.bytes(), ==,
      memory_.workspace_bytes);
}

void Root::embed(Stream& stream, std::span<const int32_t> ids, float* out) {
  CONVOY_CHECK_OP(ids.size(), <=, static_cast<size_t>(max_columns_));
  for (const int32_t id : ids)
    CONVOY_CHECK(id >= 0 && id < config_.vocab_size, fmt::format("token id {}", id));
  stream.copy(token_ids_.data(), ids.data(), ids.size_bytes());
  device_.ops().embedding(
      stream, {.ids = token_ids_.as<int32_t>(),
               .rows = static_cast<int>(ids.size()),
               .hidden = config_.hidden_size,
               .table = config_.tie_word_embeddings ? nullptr : weights_.table("embedding"),
               .packed = config_.tie_word_embeddings ? weights_.linear("head") : LinearWeight{},
               .out = out});
}

void Root::choose(Stream& stream, int lanes, std::span<int32_t> ids) {
  CONVOY_CHECK(lanes >= 1 && lanes <= max_lanes_ && ids.size() == static_cast<size_t>(lanes),
               fmt::format("{} lanes", lanes));
  OpSet& ops = device_.ops();
  const int hidden = config_.hidden_size;
  ops.rms_norm(stream, {.x = last_.as<float>(),
                        .out = normed_.as<float>(),
                        .weight = weights_.vector("final_norm"),
                        .rows = lanes,
                        .size = hidden,
                        .x_row_stride = hidden,
                        .out_row_stride = hidden,
                        .eps = config_.rms_norm_eps});
  ops.linear(stream, {.x = normed_.as<float>(),
                      .x_row_stride = hidden,
                      .weight = weights_.linear("head"),
                      .out = logits_.as<float>(),
                      .out_row_stride = config_.vocab_size,
                      .rows = lanes});
  ops.argmax(stream, {.logits = logits_.as<float>(),
                      .row_stride = config_.vocab_size,
                      .rows = lanes,
                      .valid = valid_vocab_,
                      .ids = chosen_.as<int32_t>()});
  stream.copy(ids.data(), chosen_.data(), ids.size_bytes());
  stream.synchronize();
}

}  // namespace convoy
