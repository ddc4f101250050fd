#include "coordinator/sampling/sampling_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <string_view>

#include "base/check.h"

namespace convoy {
namespace {

Error refused(std::string_view option, double value, std::string_view allowed) {
  return Error{fmt::format("{} is {}; allowed is {}", option, value, allowed)};
}

bool within(double value, double low, double high) {
  return value >= low && value <= high;
}

}  // namespace

Status SamplingOptions::validate(int valid_vocab) const {
  if (!within(temperature, 0, 1e6)) return refused("temperature", temperature, "0 to 1000000");
  if (top_k < -1) {
    return Error{
        fmt::format("top_k is {}; allowed is a positive integer, or 0 or -1 for no limit", top_k)};
  }
  if (!within(top_p, 0, 1)) return refused("top_p", top_p, "0 to 1");
  if (!within(min_p, 0, 1)) return refused("min_p", min_p, "0 to 1");
  if (!within(presence_penalty, -2, 2)) {
    return refused("presence_penalty", presence_penalty, "-2 to 2");
  }
  if (!within(frequency_penalty, -2, 2)) {
    return refused("frequency_penalty", frequency_penalty, "-2 to 2");
  }
  // The f32 that is computed with must be neither 0 nor infinite.
  if (!within(repetition_penalty, 1e-6, 1e6)) {
    return refused("repetition_penalty", repetition_penalty, "0.000001 to 1000000");
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= valid_vocab) {
      return Error{
          fmt::format("logit_bias names token {}; allowed are 0 to {}", id, valid_vocab - 1)};
    }
    if (std::isnan(bias)) {
      return Error{fmt::format("logit_bias of token {} is {}; allowed is a number", id, bias)};
    }
  }
  return {};
}

DrawRule SamplingOptions::rule(uint64_t token_index, int valid_vocab) const {
  return {.top_p = top_p,
          .seed = seed,
          .token_index = token_index,
          .temperature = is_greedy() ? 0.0F : static_cast<float>(temperature),
          .min_p = static_cast<float>(min_p),
          .top_k = top_k > 0 && top_k < valid_vocab ? static_cast<int32_t>(top_k) : 0};
}

uint64_t random_seed() {
  uint64_t seed = 0;
  CONVOY_CHECK(getentropy(&seed, sizeof(seed)) == 0, "the operating system gave no random numbers");
  return seed >> 11;
}

}  // namespace convoy
