#include "coordinator/cli/number_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace convoy {
namespace {

// CLI11 reads whole numbers with strtoll and strtoull in base 0: 010 would be 8, and what is out of
// range, or below zero where there is no sign, the largest there is. It gets what means the same in
// any base.
template <typename Whole>
std::string make_decimal(std::string& text) {
  using Limits = std::numeric_limits<Whole>;
  Whole number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return fmt::format("'{}' is no whole number from {} to {}", text, Limits::min(), Limits::max());
  text = std::to_string(number);
  return "";
}

std::string refuse_nan(std::string& text) {
  if (!std::isnan(std::strtod(text.c_str(), nullptr))) return "";
  return fmt::format("'{}' is no number", text);
}

// The type's name without what the option's checks add to it.
std::string type_of(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find(':'));
}

}  // namespace

void read_numbers_as_written(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    // transform() puts it before the option's own checks.
    const std::string type = type_of(*option);
    if (type == "INT") option->transform(CLI::Validator(make_decimal<int64_t>, ""));
    if (type == "UINT") option->transform(CLI::Validator(make_decimal<uint64_t>, ""));
    if (type == "FLOAT") option->transform(CLI::Validator(refuse_nan, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) read_numbers_as_written(*command);
}

}  // namespace convoy
