#include "coordinator/text/utf8.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TEST(Utf8, ExactlyTheScalarValuesAreValid) {
  // All sequences of up to three bytes, and four bytes with few last ones, against the definition.
  int valid = 0;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0x70; b < 0xD0; ++b) {
      for (int c = 0x70; c < 0xD0; ++c) {
        const std::string text = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        const bool one_character =
            a >= 0xE0 && a < 0xF0 && b >= 0x80 && b < 0xC0 && c >= 0x80 && c < 0xC0;
        const int value = (a & 0xF) << 12 | (b & 0x3F) << 6 | (c & 0x3F);
        if (!one_character) continue;
        const bool scalar = value >= 0x800 && (value < 0xD800 || value > 0xDFFF);
        ASSERT_EQ(!find_invalid_utf8(text), scalar) << std::hex << value;
        valid += scalar ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(valid, 0x10000 - 0x800 - 0x800);
  for (const std::string text : {"\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "\xC2\x80", "\xDF\xBF"})
    EXPECT_FALSE(find_invalid_utf8(text));
  for (const std::string text : {"\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                 "\xC1\xBF", "\xC2", "\xF0\x90\x80"}) {
    EXPECT_EQ(find_invalid_utf8(text), 0u);
  }
}

TEST(Utf8, TheOffsetIsThatOfTheFirstBadSequence) {
  for (size_t before = 0; before < 40; ++before) {
    EXPECT_EQ(find_invalid_utf8(std::string(before, 'a') + "\u00E9\xE2\x82" + std::string(20, 'b')),
              before + 2);
  }
}

TEST(Utf8, EachMaximalSubpartBecomesOneReplacement) {
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98z"), "\uFFFDz");
  EXPECT_EQ(to_valid_utf8("\xE2\x82\xE2\x82\xAC"), "\uFFFD\u20AC");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                          "b\x80"
                          "c\x80\xBF"
                          "d"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

TEST(Utf8, CodePointsAreReadForwardsAndBackwards) {
  const std::string text = "a\u00E9\u20AC\U0001F600";
  size_t offset = 0;
  std::u32string points;
  while (offset < text.size()) {
    size_t size_bytes = 0;
    points += code_point_at(text, offset, size_bytes);
    EXPECT_EQ(previous_code_point(text, offset + size_bytes), offset);
    offset += size_bytes;
  }
  EXPECT_EQ(points, U"a\u00E9\u20AC\U0001F600");
}

}  // namespace
}  // namespace convoy
