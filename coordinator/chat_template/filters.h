// The filters by box file: plain ones here, those on sequences in sequence_filters.cpp. Private to
// the builtins.
#pragma once

#include <span>
#include <string_view>

#include "coordinator/chat_template/builtins.h"

namespace convoy::jinja {

/// What a filter works on.
struct FilterCall {
  Budget& budget;
  const Value& value;
  const BoundArguments& arguments;
};

struct Filter {
  std::string_view name;
  std::string_view parameters[BoundArguments::kMaxParameters];  ///< unused ones are empty
  Value (*apply)(const FilterCall& call);
};

/// map, select, reject, selectattr, rejectattr hand their arguments on.
struct ForwardingFilter {
  std::string_view name;
  Value (*apply)(Budget& budget, const Value& value, Arguments arguments);
};

std::span<const Filter> sequence_filters();
std::span<const ForwardingFilter> forwarding_filters();

}  // namespace convoy::jinja
