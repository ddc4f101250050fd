// One end of a control conversation: frames out, frames and descriptors in, on an io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shared/control/frame.h"

namespace convoy {

/// What on_closed says when the peer went away inside a frame.
inline constexpr const char* kPeerClosedMidFrame = "the peer closed in the middle of a frame";

/// Lives in a shared_ptr, since pending reads and writes hold it. All members are called on the
/// io_context's thread, except send(), which any thread may call.
class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  /// A payload and the descriptors that came with it (in order; rarely any).
  using OnFrame =
      std::function<void(const std::string& payload, std::vector<UniqueFd> descriptors)>;
  /// Called once: "" when the peer closed between frames, kPeerClosedMidFrame when inside one, else
  /// what was wrong. A peer that dies with unread frames counts as closed, and what it sent before
  /// is delivered first.
  using OnClosed = std::function<void(const std::string& reason)>;

  FrameChannel(boost::asio::io_context& context, UniqueFd socket);
  void start(OnFrame on_frame, OnClosed on_closed);
  /// Sends in order. Descriptors are duplicated by the kernel: the caller keeps its own. Errors
  /// close the channel, but to a peer that is gone frames are dropped, and reading finds its end.
  void send(const google::protobuf::MessageLite& message, const std::vector<int>& descriptors = {});
  /// Closes after nothing more: pending frames are dropped and on_closed is not called.
  void close();

 private:
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    std::vector<UniqueFd> descriptors;
  };
  void wait_readable();
  void read_some();
  void deliver();
  void peer_closed();
  void write_some();
  void fail(const std::string& reason);

  boost::asio::io_context& context_;
  boost::asio::local::stream_protocol::socket socket_;
  OnFrame on_frame_;
  OnClosed on_closed_;
  FrameDecoder decoder_;
  std::vector<UniqueFd> received_;
  std::deque<Outgoing> outgoing_;
  bool writing_ = false;
  bool peer_gone_ = false;  // nothing can be sent any more
  bool closed_ = false;
};

}  // namespace convoy
