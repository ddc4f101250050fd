#include "coordinator/engine/root.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

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
      weights_(device, stream, checkpoint, root_weight_table(config_), "", progress),
      staged_ids_(device, static_cast<size_t>(max_columns_) * sizeof(int32_t), "staged token ids"),
      staged_rules_(device, static_cast<size_t>(max_lanes_) * sizeof(DrawRule),
                    "staged rules of draws"),
      chosen_on_host_(device.allocate_host(
          kChoices * static_cast<size_t>(max_lanes_) * sizeof(int32_t), "chosen ids on the host")) {
  for (auto& event : choice_made_) event = device.make_event();
  CONVOY_CHECK(valid_vocab_ >= 1 && valid_vocab_ <= config_.vocab_size,
               fmt::format("{} of {} ids", valid_vocab_, config_.vocab_size));
  const auto lanes = static_cast<size_t>(max_lanes_);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  token_ids_ = device.allocate(static_cast<size_t>(max_columns_) * sizeof(int32_t), "token ids");
  const size_t column_bytes = hidden * activation_bytes(device.kind());
  last_ = device.allocate(lanes * column_bytes, "last columns");
  normed_ = device.allocate(lanes * column_bytes, "normalised last columns");
  logits_ =
      device.allocate(lanes * static_cast<size_t>(config_.vocab_size) * sizeof(float), "logits");
  chosen_ = device.allocate(lanes * sizeof(int32_t), "chosen ids");
  rules_ = device.allocate(lanes * sizeof(DrawRule), "rules of draws");
  drawn_ = device.allocate(lanes * sizeof(int32_t), "drawn ids");
  CONVOY_CHECK_OP(weights_.bytes(), ==, memory_.weight_bytes);
  CONVOY_CHECK_OP(token_ids_.bytes() + last_.bytes() + normed_.bytes() + logits_.bytes() +
                      chosen_.bytes() + rules_.bytes() + drawn_.bytes(),
                  ==, memory_.workspace_bytes);
}

void Root::prepare(Stream& stream) {
  if (device_.kind() == DeviceKind::cpu) return;
  const int32_t id = 0;
  embed(stream, {&id, 1}, last_.data());
  const std::vector<DrawRule> rules(static_cast<size_t>(max_lanes_), {.temperature = 1.0F});
  for (int lanes = 1; lanes <= max_lanes_; ++lanes)
    choose(stream, lanes, {rules.data(), static_cast<size_t>(lanes)});
  stream.synchronize();
}

void Root::embed(Stream& stream, std::span<const int32_t> ids, void* out) {
  CONVOY_CHECK_OP(ids.size(), <=, static_cast<size_t>(max_columns_));
  for (const int32_t id : ids)
    CONVOY_CHECK(id >= 0 && id < config_.vocab_size, fmt::format("token id {}", id));
  staged_ids_.copy(stream, token_ids_.data(), ids.data(), ids.size_bytes());
  embed_ids(stream, token_ids_.as<int32_t>(), static_cast<int>(ids.size()), out);
}

void Root::embed_chosen(Stream& stream, int lanes, void* out) {
  CONVOY_CHECK(choices_ > 0 && lanes <= max_lanes_, fmt::format("{} lanes", lanes));
  embed_ids(stream, chosen_.as<int32_t>(), lanes, out);
}

void Root::embed_ids(Stream& stream, const int32_t* ids, int rows, void* out) {
  device_.ops().embedding(
      stream, {.ids = ids,
               .rows = rows,
               .hidden = config_.hidden_size,
               .table = config_.tie_word_embeddings ? nullptr : weights_.table("embedding"),
               .packed = config_.tie_word_embeddings ? weights_.linear("head") : LinearWeight{},
               .out = out});
}

uint64_t Root::choose(Stream& stream, int lanes, std::span<const DrawRule> rules) {
  CONVOY_CHECK(lanes >= 1 && lanes <= max_lanes_, fmt::format("{} lanes", lanes));
  OpSet& ops = device_.ops();
  const int hidden = config_.hidden_size;
  ops.rms_norm(stream, {.x = last_.data(),
                        .out = normed_.data(),
                        .weight = weights_.vector("final_norm"),
                        .rows = lanes,
                        .size = hidden,
                        .x_row_stride = hidden,
                        .out_row_stride = hidden,
                        .eps = config_.rms_norm_eps});
  ops.linear(stream, {.x = normed_.data(),
                      .x_row_stride = hidden,
                      .weight = weights_.linear("head"),
                      .out = logits_.as<float>(),
                      .out_row_stride = config_.vocab_size,
                      .rows = lanes,
                      .position_class = PositionClass::generated,
                      .f32_out = true});
  ops.argmax(stream, {.logits = logits_.as<float>(),
                      .row_stride = config_.vocab_size,
                      .rows = lanes,
                      .valid = valid_vocab_,
                      .ids = chosen_.as<int32_t>()});
  const bool draws = !std::all_of(rules.begin(), rules.end(), std::mem_fn(&DrawRule::greedy));
  if (draws) draw(stream, rules);
  const uint64_t choice = choices_++;
  stream.copy(choice_on_host(choice), draws ? drawn_.data() : chosen_.data(),
              static_cast<size_t>(lanes) * sizeof(int32_t));
  choice_made_[choice % kChoices]->record(stream);
  return choice;
}

void Root::draw(Stream& stream, std::span<const DrawRule> rules) {
  staged_rules_.copy(stream, rules_.data(), rules.data(), rules.size_bytes());
  device_.ops().sample(stream, {.logits = logits_.as<float>(),
                                .row_stride = config_.vocab_size,
                                .rows = static_cast<int>(rules.size()),
                                .valid = valid_vocab_,
                                .rules = rules_.as<DrawRule>(),
                                .ids = chosen_.as<int32_t>(),
                                .drawn = drawn_.as<int32_t>()});
}

void Root::wait_chosen(uint64_t choice, std::span<int32_t> ids) {
  CONVOY_CHECK(choice < choices_ && choice + kChoices >= choices_,
               fmt::format("choice {} of {}", choice, choices_));
  CONVOY_CHECK_OP(ids.size(), <=, static_cast<size_t>(max_lanes_));
  wait_until_passed(*choice_made_[choice % kChoices]);
  std::copy_n(choice_on_host(choice), ids.size(), ids.begin());
}

}  // namespace convoy
