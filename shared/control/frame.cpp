#include "shared/control/frame.h"

#include <fmt/format.h>

#include "base/check.h"

namespace convoy {

std::string encode_frame(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  CONVOY_CHECK(size >= 1 && size <= kMaxFrameBytes, fmt::format("frame of {} bytes", size));
  std::string frame(kFrameHeaderBytes, '\0');
  for (size_t i = 0; i < kFrameHeaderBytes; ++i)
    frame[i] = static_cast<char>((size >> (8 * i)) & 0xff);
  CONVOY_CHECK(message.AppendToString(&frame), "message does not serialize");
  return frame;
}

Result<std::optional<std::string>> FrameDecoder::next() {
  if (buffer_.size() < kFrameHeaderBytes) return std::optional<std::string>();
  size_t size = 0;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i)
    size |= size_t{static_cast<unsigned char>(buffer_[i])} << (8 * i);
  if (size == 0 || size > kMaxFrameBytes) {
    return Error{fmt::format("frame length {} is not between 1 and {}", size, kMaxFrameBytes)};
  }
  if (buffer_.size() < kFrameHeaderBytes + size) return std::optional<std::string>();
  std::string payload = buffer_.substr(kFrameHeaderBytes, size);
  buffer_.erase(0, kFrameHeaderBytes + size);
  return std::optional<std::string>(std::move(payload));
}

}  // namespace convoy
