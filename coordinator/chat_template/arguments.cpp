#include <fmt/format.h>

#include "base/check.h"
#include "coordinator/chat_template/builtins.h"
#include "coordinator/chat_template/operators.h"

namespace convoy::jinja {

BoundArguments::BoundArguments(std::string_view function, Arguments arguments,
                               std::span<const std::string_view> names)
    : function_(function), names_(names) {
  CONVOY_CHECK_OP(names.size(), <=, kMaxParameters);
  if (arguments.positional.size() > names.size()) {
    throw RenderFailure{fmt::format("{}: {} arguments given, at most {} allowed", function,
                                    arguments.positional.size(), names.size())};
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i)
    values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    size_t index = 0;
    while (index < names.size() && names[index] != name) ++index;
    if (index == names.size())
      throw RenderFailure{fmt::format("{}: there is no argument \"{}\"", function, name)};
    if (values_[index])
      throw RenderFailure{fmt::format("{}: the argument \"{}\" is given twice", function, name)};
    values_[index] = std::move(value);
  }
}

const Value& BoundArguments::at(size_t index) const {
  if (!values_[index])
    throw RenderFailure{
        fmt::format("{}: the argument \"{}\" is missing", function_, names_[index])};
  return *values_[index];
}

bool BoundArguments::flag(size_t index, bool otherwise) const {
  return values_[index] ? truth(*values_[index]) : otherwise;
}

Integer BoundArguments::integer(size_t index, Integer otherwise) const {
  if (!values_[index]) return otherwise;
  require_defined(*values_[index]);
  const auto number = as_integer(*values_[index]);
  if (!number) {
    throw RenderFailure{fmt::format("{}: the argument \"{}\" must be an integer, not {}", function_,
                                    names_[index], type_name(*values_[index]))};
  }
  return *number;
}

std::string_view BoundArguments::text(size_t index, std::string_view otherwise) const {
  if (!values_[index]) return otherwise;
  require_defined(*values_[index]);
  const std::string* text = values_[index]->text();
  if (text == nullptr) {
    throw RenderFailure{fmt::format("{}: the argument \"{}\" must be a text, not {}", function_,
                                    names_[index], type_name(*values_[index]))};
  }
  return *text;
}

std::optional<std::string_view> BoundArguments::optional_text(size_t index) const {
  if (!values_[index] || values_[index]->is_none()) return std::nullopt;
  return text(index, {});
}

}  // namespace convoy::jinja
