#include "coordinator/cli/sampling_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "base/exit_code.h"
#include "coordinator/sampling/generation_config.h"

namespace convoy {
namespace {

// "1234=-5.5": a token id and what is added to its logit.
std::pair<int32_t, double> parse_bias(const std::string& text) {
  const size_t equals = text.find('=');
  int32_t id = -1;
  double bias = 0;
  bool good = equals != std::string::npos;
  if (good) {
    const char* const begin = text.data();
    const auto [id_end, id_error] = std::from_chars(begin, begin + equals, id);
    const auto [end, error] = std::from_chars(begin + equals + 1, begin + text.size(), bias);
    good = id_error == std::errc() && id_end == begin + equals && error == std::errc() &&
           end == begin + text.size();
  }
  if (!good) throw UsageError(fmt::format("--logit-bias: '{}' is not ID=VALUE", text));
  return {id, bias};
}

}  // namespace

void SamplingFlags::add_to(CLI::App& command) {
  command_ = &command;
  constexpr const char* kGroup = "Sampling";
  command.add_flag("--greedy", greedy_, "Always the likeliest token")->group(kGroup);
  command
      .add_option("--temperature", temperature_,
                  "Divides the logits; 0 is greedy (default: the model's)")
      ->group(kGroup);
  command.add_option("--top-k", top_k_, "Draw from the k likeliest tokens; 0: all")->group(kGroup);
  command.add_option("--top-p", top_p_, "Draw from the fewest tokens that hold this share; 1: all")
      ->group(kGroup);
  command
      .add_option("--min-p", min_p_,
                  "Draw from tokens at least this part as likely as the likeliest; 0: all")
      ->group(kGroup);
  command
      .add_option("--presence-penalty", presence_,
                  "Taken from the logit of every token generated before")
      ->group(kGroup);
  command
      .add_option("--frequency-penalty", frequency_, "The same, times how often it was generated")
      ->group(kGroup);
  command
      .add_option("--repetition-penalty", repetition_,
                  "Divides the logit of every token of prompt and answer; 1: off")
      ->group(kGroup);
  command
      .add_option("--logit-bias", logit_bias_,
                  "ID=VALUE, added to a token's logit (-inf bans it, inf forces it); may be given "
                  "several times")
      ->take_all()
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--seed", seed_,
                  "The same seed draws the same tokens (default: random, reported)")
      ->group(kGroup);
}

SamplingOptions SamplingFlags::resolve(const std::filesystem::path& model_directory) const {
  SamplingOptions options = read_generation_config(model_directory);
  bool sampling_asked = false;
  const auto take = [&](const char* flag, auto& target, const auto& value) {
    if (command_->count(flag) == 0) return;
    target = value;
    sampling_asked = true;
  };
  take("--temperature", options.temperature, temperature_);
  take("--top-k", options.top_k, top_k_);
  take("--top-p", options.top_p, top_p_);
  take("--min-p", options.min_p, min_p_);
  take("--seed", options.seed, seed_);
  if (sampling_asked) options.greedy = false;
  take("--presence-penalty", options.presence_penalty, presence_);
  take("--frequency-penalty", options.frequency_penalty, frequency_);
  take("--repetition-penalty", options.repetition_penalty, repetition_);
  for (const std::string& text : logit_bias_) {
    const auto [id, bias] = parse_bias(text);
    if (!options.logit_bias.emplace(id, bias).second)
      throw UsageError(fmt::format("--logit-bias: token {} is named twice", id));
  }
  if (greedy_) options.greedy = true;
  if (command_->count("--seed") == 0) options.seed = random_seed();
  if (const Status status = options.validate(std::numeric_limits<int>::max()); !status)
    throw UsageError(status.error());
  return options;
}

}  // namespace convoy
