// Replays the corpus of the messages fuzz target.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace convoy {
namespace {

TEST(MessagesFuzzCorpus, EveryInputAndEveryBeginningOfItIsRefusedOrWorks) {
  int inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(CONVOY_SOURCE_DIR "/tests/fuzz/corpus/messages")) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    const std::string input = text.str();
    SCOPED_TRACE(entry.path().filename());
    for (size_t size = 0; size <= input.size(); ++size)
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), size);
    ++inputs;
  }
  EXPECT_GE(inputs, 7);
}

}  // namespace
}  // namespace convoy
