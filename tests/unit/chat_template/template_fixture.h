// Reading of fixtures for the tests of this box.
#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/exit_code.h"
#include "coordinator/chat_template/chat_template.h"

namespace convoy::template_test {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::filesystem::path fixture_path(const std::string& name) {
  return std::filesystem::path(CONVOY_SOURCE_DIR "/tests/unit/chat_template/fixtures") / name;
}

inline std::string fixture_text(const std::string& name) {
  return read_text(fixture_path(name));
}

inline boost::json::value fixture_json(const std::string& name) {
  return boost::json::parse(fixture_text(name));
}

inline std::string text_of(const boost::json::value& value) {
  return std::string(value.as_string());
}

/// 2025-03-09 14:05:06 UTC, which strftime_now sees in the fixtures.
inline constexpr std::time_t kFixtureTime = 1741529106;

/// The rendering, or "error: " and the message whether it came up while parsing or rendering.
inline std::string rendered(const std::string& source, const boost::json::object& context = {},
                            RenderOptions options = {}) {
  if (!options.now) options.now = kFixtureTime;
  try {
    const auto parsed = ChatTemplate::parse(source, "t");
    const auto result = parsed.render(context, options);
    return result.ok() ? result.value() : "error: " + result.error();
  } catch (const StartError& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace convoy::template_test
