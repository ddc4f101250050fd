// The fixture of tests of convoy generate.
#pragma once

#include "tests/integration/convoy_test.h"

namespace convoy::testing {

class GenerateTest : public ConvoyTest {
 protected:
  Ended quiet(Words words) const {
    words.emplace_back("--quiet");
    return run(generate(std::move(words)));
  }
  json::object as_json(Words words) const {
    words.emplace_back("--json");
    return json_of(quiet(std::move(words)));
  }
  /// Fails unless the command ends with `code` and one line that holds all of `said`.
  void expect_error(const ProgramCall& call, int code, const std::vector<std::string>& said) const {
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, code);
    for (const std::string& word : said) EXPECT_THAT(ended.err, ::testing::HasSubstr(word));
    EXPECT_EQ(ended.out, "");
  }
  void expect_error(Words words, int code, const std::vector<std::string>& said) const {
    expect_error(generate(std::move(words)), code, said);
  }
};

}  // namespace convoy::testing
