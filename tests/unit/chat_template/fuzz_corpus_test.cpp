// Replays the corpus of the fuzz target: each of its inputs once did, or might, break something.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/chat_template/template_fixture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace convoy {
namespace {

TEST(ChatTemplateFuzzCorpus, EveryInputIsRefusedOrWorks) {
  int inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(CONVOY_SOURCE_DIR "/tests/fuzz/corpus/chat_template")) {
    const std::string input = template_test::read_text(entry.path());
    SCOPED_TRACE(entry.path().filename());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    // The same with its end missing, in steps.
    for (size_t size = 0; size < input.size(); size += input.size() / 50 + 1) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), size);
    }
    ++inputs;
  }
  EXPECT_GE(inputs, 15);
}

}  // namespace
}  // namespace convoy
