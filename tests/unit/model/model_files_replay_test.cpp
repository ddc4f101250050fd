// Replays the fuzz target's seeds, and a fixed number of damaged copies of each, in every build.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/model/checkpoint_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace convoy::testing {
namespace {

constexpr int kDamagedCopies = 300;

std::vector<std::string> seeds() {
  const std::filesystem::path corpus =
      std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/fuzz/corpus/model_files";
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    texts.push_back(read_file(entry.path()));
  }
  return texts;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

/// One to four edits: a byte changed, a piece removed, doubled, or replaced by a token that JSON
/// readers stumble on.
std::string damaged(std::string text, std::mt19937_64& random) {
  static const std::vector<std::string> kTokens = {"null",
                                                   "-1",
                                                   "18446744073709551615",
                                                   "9223372036854775807",
                                                   "1e308",
                                                   "[",
                                                   "{",
                                                   "}",
                                                   "\"",
                                                   "\\u0000",
                                                   "0.5",
                                                   "\n",
                                                   "true",
                                                   "\"\"",
                                                   ",",
                                                   ":"};
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  const std::size_t edits = 1 + below(4);
  for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
    const std::size_t at = below(text.size());
    const std::size_t length = below(std::min<std::size_t>(24, text.size() - at)) + 1;
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      default:
        text.replace(at, length, kTokens[below(kTokens.size())]);
        break;
    }
  }
  return text;
}

TEST(ModelFilesFuzz, SeedsAndDamagedCopiesAreAcceptedOrRefused) {
  const std::vector<std::string> texts = seeds();
  ASSERT_GE(texts.size(), 8U);
  std::mt19937_64 random(20240229);
  for (const std::string& text : texts) {
    run(text);
    for (int i = 0; i < kDamagedCopies; ++i) run(damaged(text, random));
  }
}

}  // namespace
}  // namespace convoy::testing
