#include "coordinator/chat_template/budget.h"

#include <fmt/format.h>

namespace convoy::jinja {

void Budget::fail_steps() const {
  throw RenderFailure{fmt::format("the template needs more than {} steps", limits_.max_steps)};
}

void Budget::fail_memory() const {
  throw RenderFailure{
      fmt::format("the template needs more than {} bytes of memory", limits_.max_live_bytes)};
}

void Budget::fail_depth() const {
  throw RenderFailure{
      fmt::format("the template nests or recurses deeper than {} levels", limits_.max_depth)};
}

}  // namespace convoy::jinja
