#include "shared/control/frame_channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/check.h"

namespace convoy {
namespace {

constexpr size_t kMaxDescriptors = 8;  // in one message
constexpr size_t kReadBytes = 64 * 1024;

// Takes every descriptor out of a received message.
void take_descriptors(msghdr& message, std::vector<UniqueFd>& out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      out.emplace_back(fd);
    }
  }
}

}  // namespace

FrameChannel::FrameChannel(boost::asio::io_context& context, UniqueFd socket)
    : context_(context), socket_(context, boost::asio::local::stream_protocol(), socket.release()) {
  // Asio does not set close-on-exec by itself.
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  socket_.native_non_blocking(true);
}

void FrameChannel::start(OnFrame on_frame, OnClosed on_closed) {
  on_frame_ = std::move(on_frame);
  on_closed_ = std::move(on_closed);
  wait_readable();
}

void FrameChannel::wait_readable() {
  socket_.async_wait(boost::asio::socket_base::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (self->closed_) return;
                       if (error) {
                         self->fail(error.message());
                       } else {
                         self->read_some();
                       }
                     });
}

void FrameChannel::read_some() {
  std::array<char, kReadBytes> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
  iovec vector{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket_.native_handle(), &message, MSG_CMSG_CLOEXEC);
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) return wait_readable();
    if (errno == ECONNRESET) return peer_closed();
    return fail(std::strerror(errno));
  }
  std::vector<UniqueFd> descriptors;
  take_descriptors(message, descriptors);
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return fail(fmt::format("more than {} descriptors with a frame", kMaxDescriptors));
  if (count == 0) return peer_closed();
  std::string_view text{bytes.data(), static_cast<size_t>(count)};
  if (!descriptors.empty()) {
    // The kernel joins earlier frames to the one that brings descriptors, and never reads past it:
    // they belong to the last byte.
    decoder_.feed(text.substr(0, text.size() - 1));
    text.remove_prefix(text.size() - 1);
    deliver();
    if (closed_) return;
    std::move(descriptors.begin(), descriptors.end(), std::back_inserter(received_));
    if (received_.size() > kMaxDescriptors)
      return fail(fmt::format("more than {} descriptors with a frame", kMaxDescriptors));
  }
  decoder_.feed(text);
  deliver();
  if (!closed_) wait_readable();
}

void FrameChannel::peer_closed() {
  fail(decoder_.mid_frame() ? kPeerClosedMidFrame : "");
}

void FrameChannel::deliver() {
  while (!closed_) {
    auto next = decoder_.next();
    if (!next) return fail(next.error());
    if (!next.value()) return;
    on_frame_(*next.value(), std::exchange(received_, {}));
  }
}

void FrameChannel::send(const google::protobuf::MessageLite& message,
                        const std::vector<int>& descriptors) {
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->bytes = encode_frame(message);
  CONVOY_CHECK_OP(descriptors.size(), <=, kMaxDescriptors);
  for (const int fd : descriptors) {
    outgoing->descriptors.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    CONVOY_CHECK(outgoing->descriptors.back().get() >= 0, "descriptor cannot be duplicated");
  }
  boost::asio::post(context_, [self = shared_from_this(), outgoing] {
    if (self->closed_ || self->peer_gone_) return;
    self->outgoing_.push_back(std::move(*outgoing));
    if (!self->writing_) self->write_some();
  });
}

void FrameChannel::write_some() {
  writing_ = false;
  while (!outgoing_.empty()) {
    Outgoing& front = outgoing_.front();
    iovec vector{front.bytes.data() + front.sent, front.bytes.size() - front.sent};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
    if (front.sent == 0 && !front.descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(front.descriptors.size() * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(front.descriptors.size() * sizeof(int));
      for (size_t i = 0; i < front.descriptors.size(); ++i) {
        const int fd = front.descriptors[i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
      }
    }
    const ssize_t count = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      writing_ = true;
      socket_.async_wait(boost::asio::socket_base::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (self->closed_) return;
                           if (error) return self->fail(error.message());
                           self->write_some();
                         });
      return;
    }
    if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) {
      // Its last words may still be unread.
      peer_gone_ = true;
      outgoing_.clear();
      return;
    }
    if (count < 0) return fail(std::strerror(errno));
    front.sent += static_cast<size_t>(count);
    if (front.sent == front.bytes.size()) outgoing_.pop_front();
  }
}

void FrameChannel::fail(const std::string& reason) {
  if (closed_) return;
  const OnClosed on_closed = on_closed_;
  close();
  if (on_closed) on_closed(reason);
}

void FrameChannel::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  outgoing_.clear();
}

}  // namespace convoy
