// Frames on control and health sockets: a 32-bit little-endian length, then one serialized message.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convoy {

/// Raised when an old peer would misread a new message. Hello carries it first.
inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr size_t kMaxFrameBytes = size_t{1} << 20;
inline constexpr size_t kFrameHeaderBytes = 4;

/// Header and payload. `message` must serialize to 1..kMaxFrameBytes bytes (checked).
std::string encode_frame(const google::protobuf::MessageLite& message);

/// Cuts a byte stream into payloads. After an error it stays failed.
class FrameDecoder {
 public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  /// The next whole payload; nothing yet; or an error: a length of 0 or above kMaxFrameBytes.
  Result<std::optional<std::string>> next();
  /// Whether bytes of an unfinished frame are left: the peer closed in the middle.
  bool mid_frame() const { return !buffer_.empty(); }

 private:
  std::string buffer_;
};

}  // namespace convoy
