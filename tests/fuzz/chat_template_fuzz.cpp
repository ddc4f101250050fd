// libFuzzer target of the chat template. Input: a template and, optionally, 0xFF and a JSON object
// of variables (0xFF occurs in no valid UTF-8).
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/exit_code.h"
#include "coordinator/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\xFF');
  boost::json::object context;
  if (end != std::string_view::npos) {
    boost::json::error_code error;
    const auto value = boost::json::parse(input.substr(end + 1), error);
    if (!error && value.is_object()) context = value.get_object();
  }
  convoy::RenderOptions options;
  options.limits = {.max_steps = 100'000,
                    .max_live_bytes = 4 << 20,
                    .max_output_bytes = 1 << 20,
                    .max_depth = 400};
  options.now = 0;
  try {
    const auto parsed = convoy::ChatTemplate::parse(std::string(input.substr(0, end)), "fuzz");
    const auto first = parsed.render(context, options);
    const auto second = parsed.render(context, options);
    CONVOY_CHECK(first.ok() == second.ok(), "two renderings differ");
    if (first.ok()) {
      CONVOY_CHECK(first.value() == second.value(), "two renderings differ");
      CONVOY_CHECK_OP(first.value().size(), <=, options.limits.max_output_bytes);
    } else {
      CONVOY_CHECK(first.error() == second.error(), "two errors differ");
      CONVOY_CHECK(first.error().starts_with("fuzz: line "), "the error names no place");
    }
  } catch (const convoy::StartError&) {
    // A refused template is a good outcome.
  }
  return 0;
}
