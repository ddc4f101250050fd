#include "shared/control/frame_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "control.pb.h"

namespace convoy {
namespace {

using testing::HasSubstr;
constexpr auto kPatience = std::chrono::seconds(30);

proto::ToWorker numbered(int number, size_t padding = 0) {
  proto::ToWorker message;
  message.mutable_hello()->set_pid(number);
  message.mutable_hello()->set_role(std::string(padding, 'p'));
  return message;
}

struct Received {
  int number = -1;
  size_t padding = 0;
  std::vector<UniqueFd> descriptors;
};

/// A channel on an io_context thread of its own, and what came out of it.
class ChannelEnd {
 public:
  explicit ChannelEnd(UniqueFd socket)
      : work_(context_.get_executor()),
        channel_(std::make_shared<FrameChannel>(context_, std::move(socket))) {
    thread_ = std::thread([this] { context_.run(); });
    boost::asio::post(context_, [this] {
      channel_->start(
          [this](const std::string& payload, std::vector<UniqueFd> descriptors) {
            proto::ToWorker message;
            const bool parsed = message.ParseFromString(payload);
            const std::lock_guard lock(mutex_);
            frames_.push_back({parsed ? message.hello().pid() : -1, message.hello().role().size(),
                               std::move(descriptors)});
            changed_.notify_all();
          },
          [this](const std::string& reason) {
            const std::lock_guard lock(mutex_);
            closed_.push_back(reason);
            changed_.notify_all();
          });
    });
  }
  ~ChannelEnd() {
    close();
    work_.reset();
    context_.stop();
    thread_.join();
  }
  FrameChannel& channel() { return *channel_; }
  void close() {
    std::promise<void> done;
    boost::asio::post(context_, [&] {
      channel_->close();
      done.set_value();
    });
    done.get_future().wait();
  }
  bool wait_frames(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return frames_.size() >= count; });
  }
  /// What on_closed said; "(open)" when it was not called.
  std::string wait_closed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return !closed_.empty(); });
    return closed_.empty() ? "(open)" : closed_.front();
  }
  std::vector<Received> take() {
    const std::lock_guard lock(mutex_);
    return std::move(frames_);
  }
  size_t times_closed() {
    const std::lock_guard lock(mutex_);
    return closed_.size();
  }

 private:
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::shared_ptr<FrameChannel> channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Received> frames_;
  std::vector<std::string> closed_;
  std::thread thread_;
};

std::array<UniqueFd, 2> socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd memory_file(const std::string& text) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_memfd_create, "test", 0)));
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

std::string text_of(const UniqueFd& fd) {
  std::array<char, 64> bytes{};
  const ssize_t count = ::pread(fd.get(), bytes.data(), bytes.size(), 0);
  return count < 0 ? "(unreadable)" : std::string(bytes.data(), static_cast<size_t>(count));
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    ASSERT_GT(count, 0);
    text.remove_prefix(static_cast<size_t>(count));
  }
}

// One sendmsg with `fds`, as another program would do it.
void send_raw(int socket, std::string_view text, const std::vector<int>& fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(64 * sizeof(int))> control{};
  iovec vector{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  ASSERT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

TEST(FrameChannel, LargeAndSmallFramesArriveWholeAndInOrder) {
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  ChannelEnd b(std::move(right));
  const std::vector<size_t> sizes{0, 1, 65'000, 3, 1'000'000, 70'000, 1'048'000, 0, 200'000, 5};
  for (size_t i = 0; i < sizes.size(); ++i)
    a.channel().send(numbered(static_cast<int>(i), sizes[i]));
  ASSERT_TRUE(b.wait_frames(sizes.size()));
  const auto frames = b.take();
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(frames[i].number, static_cast<int>(i));
    EXPECT_EQ(frames[i].padding, sizes[i]);
    EXPECT_TRUE(frames[i].descriptors.empty());
  }
}

TEST(FrameChannel, TenThousandSmallFramesBothWaysFromManyThreads) {
  constexpr int kThreads = 2;
  constexpr int kFrames = 5000;
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  ChannelEnd b(std::move(right));
  std::vector<std::thread> senders;
  for (ChannelEnd* end : {&a, &b}) {
    for (int t = 0; t < kThreads; ++t) {
      senders.emplace_back([end, t] {
        for (int i = 0; i < kFrames; ++i) end->channel().send(numbered(t * kFrames + i));
      });
    }
  }
  for (std::thread& sender : senders) sender.join();
  for (ChannelEnd* end : {&a, &b}) {
    ASSERT_TRUE(end->wait_frames(kThreads * kFrames));
    std::array<int, kThreads> next{};
    for (const Received& frame : end->take()) {
      const int sender = frame.number / kFrames;
      ASSERT_EQ(frame.number % kFrames,
                next[static_cast<size_t>(sender)]++);  // each sender's frames keep their order
    }
    EXPECT_EQ(next, (std::array<int, kThreads>{kFrames, kFrames}));
  }
}

TEST(FrameChannel, DescriptorsArriveWithTheirFrame) {
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  const UniqueFd one = memory_file("one");
  const UniqueFd two = memory_file("two");
  a.channel().send(numbered(0));
  a.channel().send(numbered(1, 300'000), {one.get(), two.get()});
  a.channel().send(numbered(2));
  a.channel().send(numbered(3), {two.get()});
  a.channel().send(numbered(4), {one.get()});
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // so that several frames lie in the socket at once
  ChannelEnd b(std::move(right));
  ASSERT_TRUE(b.wait_frames(5));
  const auto frames = b.take();
  const std::vector<std::vector<std::string>> expected{{}, {"one", "two"}, {}, {"two"}, {"one"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(frames[i].descriptors.size(), expected[i].size()) << "frame " << i;
    for (size_t d = 0; d < expected[i].size(); ++d) {
      EXPECT_EQ(text_of(frames[i].descriptors[d]), expected[i][d]);
      EXPECT_NE(::fcntl(frames[i].descriptors[d].get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
}

TEST(FrameChannel, TheCallersDescriptorsStayOpenAndOneClosedAfterSendStillArrives) {
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  ChannelEnd b(std::move(right));
  UniqueFd file = memory_file("text");
  a.channel().send(numbered(1), {file.get()});
  EXPECT_GE(::fcntl(file.get(), F_GETFD), 0);
  file.reset();
  ASSERT_TRUE(b.wait_frames(1));
  const auto frames = b.take();
  ASSERT_EQ(frames[0].descriptors.size(), 1U);
  EXPECT_EQ(text_of(frames[0].descriptors[0]), "text");
}

TEST(FrameChannel, MoreDescriptorsThanAFrameMayHaveAreRefused) {
  const UniqueFd file = memory_file("x");
  const std::string frame = encode_frame(numbered(1, 100));
  {
    auto [left, right] = socket_pair();
    ChannelEnd b(std::move(right));
    send_raw(left.get(), frame, std::vector<int>(20, file.get()));  // in one message
    EXPECT_THAT(b.wait_closed(), HasSubstr("more than 8 descriptors"));
  }
  auto [left, right] = socket_pair();
  ChannelEnd b(std::move(right));
  for (size_t i = 0; i < 3; ++i)
    send_raw(left.get(), frame.substr(i, 1), std::vector<int>(4, file.get()));  // in several
  EXPECT_THAT(b.wait_closed(), HasSubstr("more than 8 descriptors"));
}

TEST(FrameChannel, PeerThatClosesBetweenFramesIsAQuietEnd) {
  auto [left, right] = socket_pair();
  ChannelEnd b(std::move(right));
  write_all(left.get(), encode_frame(numbered(1)));
  left.reset();
  EXPECT_EQ(b.wait_closed(), "");
  EXPECT_EQ(b.take().size(), 1U);
  EXPECT_EQ(b.times_closed(), 1U);
}

TEST(FrameChannel, PeerThatClosesInsideAFrameIsNamed) {
  const std::string frame = encode_frame(numbered(1, 100));
  for (const size_t length : {size_t{1}, size_t{4}, size_t{50}, frame.size() - 1}) {
    auto [left, right] = socket_pair();
    ChannelEnd b(std::move(right));
    write_all(left.get(), frame.substr(0, length));
    left.reset();
    EXPECT_EQ(b.wait_closed(), kPeerClosedMidFrame) << length;
    EXPECT_TRUE(b.take().empty());
  }
}

// A peer that dies with unread frames resets the connection: that is its end, and its last words
// still count.
TEST(FrameChannel, LastWordsOfAPeerThatReadNothingAreDelivered) {
  auto [near, far] = socket_pair();
  write_all(far.get(), encode_frame(numbered(100)));
  write_all(near.get(), encode_frame(numbered(0)));  // never read by the peer
  write_all(far.get(), encode_frame(numbered(101)));
  far.reset();
  ChannelEnd c(std::move(near));
  c.channel().send(numbered(1));  // EPIPE
  EXPECT_EQ(c.wait_closed(), "");
  const auto frames = c.take();
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[1].number, 101);
  EXPECT_EQ(c.times_closed(), 1U);
}

TEST(FrameChannel, OversizedAndEmptyFramesAreRefused) {
  for (const std::string& bytes :
       {std::string("\x01\x00\x10\x00", 4), std::string(4, '\xff'), std::string(4, '\0')}) {
    auto [left, right] = socket_pair();
    ChannelEnd b(std::move(right));
    write_all(left.get(), encode_frame(numbered(1)) + bytes);
    EXPECT_THAT(b.wait_closed(), HasSubstr("frame length"));
    EXPECT_EQ(b.take().size(), 1U);
    std::array<char, 1> byte;
    EXPECT_EQ(::recv(left.get(), byte.data(), byte.size(), 0), 0)
        << "the channel should have closed";
  }
}

TEST(FrameChannel, AClosedChannelSaysNothingAndDropsWhatIsSent) {
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  a.close();
  a.channel().send(numbered(1));
  std::array<char, 16> bytes;
  EXPECT_EQ(::recv(right.get(), bytes.data(), bytes.size(), 0), 0);
  EXPECT_EQ(a.times_closed(), 0U);
}

TEST(FrameChannel, ASlowReaderGetsEverything) {
  auto [left, right] = socket_pair();
  ChannelEnd a(std::move(left));
  constexpr size_t kFrames = 40;
  for (size_t i = 0; i < kFrames; ++i)
    a.channel().send(numbered(static_cast<int>(i), 100'000));  // far more than the socket holds
  FrameDecoder decoder;
  size_t got = 0;
  std::array<char, 10'000> bytes;
  while (got < kFrames) {
    const ssize_t count = ::recv(right.get(), bytes.data(), bytes.size(), 0);
    ASSERT_GT(count, 0);
    decoder.feed({bytes.data(), static_cast<size_t>(count)});
    for (auto next = decoder.next(); next.ok() && next.value(); next = decoder.next()) ++got;
  }
  EXPECT_FALSE(decoder.mid_frame());
}

}  // namespace
}  // namespace convoy
