#include "shared/control/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "control.pb.h"

namespace convoy {
namespace {

using testing::HasSubstr;

proto::ToWorker message_of(size_t bytes) {
  proto::ToWorker message;
  message.mutable_load_stage()->set_model_directory(std::string(bytes, 'x'));
  return message;
}

std::string header(uint32_t size) {
  std::string text(4, '\0');
  for (int i = 0; i < 4; ++i)
    text[static_cast<size_t>(i)] = static_cast<char>((size >> (8 * i)) & 0xff);
  return text;
}

TEST(Frame, HeaderIsALittleEndianLength) {
  const std::string frame = encode_frame(message_of(300));
  const size_t payload = frame.size() - 4;
  EXPECT_EQ(frame.substr(0, 4), header(static_cast<uint32_t>(payload)));
  proto::ToWorker back;
  ASSERT_TRUE(back.ParseFromString(frame.substr(4)));
  EXPECT_EQ(back.load_stage().model_directory().size(), 300U);
}

TEST(Frame, MessagesThatFitNoFrameAreABrokenInvariant) {
  EXPECT_DEATH(encode_frame(proto::ToWorker()), "frame of 0 bytes");
  EXPECT_DEATH(encode_frame(message_of(kMaxFrameBytes)), "frame of 10485");
}

TEST(FrameDecoder, TruncatedAtEveryByteGivesNothingYet) {
  const std::string frame = encode_frame(message_of(50));
  for (size_t length = 0; length < frame.size(); ++length) {
    FrameDecoder decoder;
    decoder.feed(frame.substr(0, length));
    const auto payload = decoder.next();
    ASSERT_TRUE(payload.ok()) << length;
    EXPECT_FALSE(payload.value().has_value()) << length;
    EXPECT_EQ(decoder.mid_frame(), length > 0) << length;
    decoder.feed(frame.substr(length));
    const auto whole = decoder.next();
    ASSERT_TRUE(whole.ok() && whole.value().has_value()) << length;
    EXPECT_EQ(*whole.value(), frame.substr(4)) << length;
    EXPECT_FALSE(decoder.mid_frame()) << length;
  }
}

TEST(FrameDecoder, ManyFramesInPiecesOfEverySize) {
  std::string stream;
  std::vector<std::string> payloads;
  for (size_t i = 0; i < 60; ++i) {
    const std::string frame = encode_frame(message_of(i * 7));
    payloads.push_back(frame.substr(4));
    stream += frame;
  }
  for (const size_t piece :
       {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{64}, size_t{1000}, stream.size()}) {
    FrameDecoder decoder;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.feed(std::string_view(stream).substr(at, piece));
      for (;;) {
        auto next = decoder.next();
        ASSERT_TRUE(next.ok());
        if (!next.value()) break;
        got.push_back(*next.value());
      }
    }
    EXPECT_EQ(got, payloads) << "pieces of " << piece;
    EXPECT_FALSE(decoder.mid_frame());
  }
}

TEST(FrameDecoder, LengthZeroIsRefusedAndStaysRefused) {
  FrameDecoder decoder;
  decoder.feed(encode_frame(message_of(5)) + header(0));
  ASSERT_TRUE(decoder.next().value().has_value());
  EXPECT_THAT(decoder.next().error(), HasSubstr("length 0"));
  decoder.feed(encode_frame(message_of(5)));
  EXPECT_FALSE(decoder.next().ok());
}

TEST(FrameDecoder, LengthAboveTheLimitIsRefusedBeforeItsBytesCome) {
  for (const uint32_t size :
       {uint32_t{kMaxFrameBytes} + 1, uint32_t{0x7fffffff}, uint32_t{0xffffffff}}) {
    FrameDecoder decoder;
    decoder.feed(header(size));
    const auto next = decoder.next();
    ASSERT_FALSE(next.ok());
    EXPECT_THAT(next.error(), HasSubstr(std::to_string(size)));
  }
  FrameDecoder decoder;
  decoder.feed(header(kMaxFrameBytes) + std::string(kMaxFrameBytes, 'y'));
  const auto largest = decoder.next();
  ASSERT_TRUE(largest.ok() && largest.value().has_value());
  EXPECT_EQ(largest.value()->size(), kMaxFrameBytes);
}

}  // namespace
}  // namespace convoy
