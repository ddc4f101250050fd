#include "coordinator/chat/exact_json.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace convoy {
namespace {

// Shortest text that reads back as `value`.
std::string shortest(double value) {
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

TEST(ExactJson, EveryDoubleIsTheOneThatWasWritten) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> spread(-1000, 1000);
  for (int i = 0; i < 20'000; ++i) {
    const double value = spread(random);
    const std::string text = "[" + shortest(value) + "]";
    if (text.find_first_of(".e") == std::string::npos) continue;
    const auto parsed = parse_exact_json(text);
    ASSERT_TRUE(parsed.ok()) << text;
    ASSERT_EQ(parsed.value().at(0).as_double(), value) << text;
  }
}

TEST(ExactJson, KeepsKeysStringsAndWholeNumbers) {
  const auto parsed = parse_exact_json(
      R"( {"a": [1, -2, 18446744073709551615, true, null, "é\n\u00e9"], "b": {}} )");
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(boost::json::serialize(parsed.value()),
            R"({"a":[1,-2,18446744073709551615,true,null,"é\né"],"b":{}})");
}

TEST(ExactJson, RefusesWhatIsNoJson) {
  for (const char* text :
       {"", "[", "[1,]", "{\"a\"}", "[1] x", "\"\\ud800\"", "nul", "[1e999999999999999999]x"}) {
    EXPECT_FALSE(parse_exact_json(text).ok()) << text;
  }
}

}  // namespace
}  // namespace convoy
