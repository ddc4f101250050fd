#include "shared/stage/staged_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace convoy {
namespace {

constexpr size_t kPiece = StagedCopy::kPieceBytes;

std::vector<unsigned char> pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned char> values(bytes);
  for (size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<unsigned char>((i * 2654435761U + seed) >> 13);
  return values;
}

TEST(StagedCopy, BringsEveryByteWhateverTheSizeAndTheThreads) {
  const auto device = make_cpu_device({});
  for (const int threads : {1, 3}) {
    StagedCopy copy(*device, threads);
    for (const size_t bytes : {size_t{0}, size_t{1}, kPiece - 1, kPiece, 3 * kPiece + 17}) {
      // One byte before and after stay as they are; the source is unaligned, as in a file.
      std::vector<unsigned char> source = pattern(bytes + 3, static_cast<unsigned>(bytes));
      const Buffer destination = device->allocate(bytes + 2, "destination");
      auto* const begin = destination.as<unsigned char>();
      copy.copy(begin + 1, source.data() + 3, bytes);
      const std::vector<unsigned char> want(source.begin() + 3, source.end());
      std::fill(source.begin(), source.end(), static_cast<unsigned char>(0xEE));  // read already
      copy.finish();
      EXPECT_EQ(begin[0], 0);
      EXPECT_EQ(begin[bytes + 1], 0);
      ASSERT_TRUE(std::equal(want.begin(), want.end(), begin + 1)) << bytes << " bytes";
    }
  }
}

TEST(StagedCopy, ManyCopiesFollowEachOther) {
  const auto device = make_cpu_device({});
  const std::vector<unsigned char> source = pattern(2 * kPiece + 5, 4);
  const Buffer destination = device->allocate(8 * source.size(), "destination");
  {
    StagedCopy copy(*device, 4);
    for (size_t i = 0; i < 8; ++i)
      copy.copy(destination.as<unsigned char>() + i * source.size(), source.data(), source.size());
  }  // waits
  for (size_t i = 0; i < 8; ++i) {
    const auto* const begin = destination.as<unsigned char>() + i * source.size();
    ASSERT_TRUE(std::equal(source.begin(), source.end(), begin)) << "copy " << i;
  }
}

}  // namespace
}  // namespace convoy
