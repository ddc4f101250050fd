// Stands in for convoy-stage-worker and breaks the protocol the way FAKE_WORKER_DOES says. Ends
// when its coordinator goes.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "control.pb.h"
#include "shared/control/frame.h"

namespace {

constexpr int kControlFd = 3;

void say(const std::string& bytes) {
  [[maybe_unused]] const ssize_t count =
      ::send(kControlFd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

convoy::proto::FromWorker hello() {
  convoy::proto::FromWorker message;
  message.mutable_hello()->set_protocol_version(convoy::kProtocolVersion);
  message.mutable_hello()->set_role("stage_worker");
  message.mutable_hello()->set_build_version("fake");
  message.mutable_hello()->set_pid(::getpid());
  return message;
}

void say_with_descriptor(const std::string& bytes) {
  std::string copy = bytes;
  iovec vector{copy.data(), copy.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = STDERR_FILENO;
  std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  [[maybe_unused]] const ssize_t count = ::sendmsg(kControlFd, &message, MSG_NOSIGNAL);
}

// Waits until the coordinator has sent its n-th frame; false when it is gone.
bool await_frames(int wanted) {
  convoy::FrameDecoder decoder;
  for (int seen = 0; seen < wanted;) {
    char bytes[4096];
    const ssize_t count = ::recv(kControlFd, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    decoder.feed({bytes, static_cast<size_t>(count)});
    for (auto next = decoder.next(); next && next.value(); next = decoder.next()) ++seen;
  }
  return true;
}

int misbehave(std::string_view how) {
  if (how == "exit at once") return 7;
  if (how == "abort after Hello") {
    say(convoy::encode_frame(hello()));
    await_frames(2);
    std::abort();
  }
  if (how == "garbage") say(std::string(3000, '\xA7'));
  if (how == "oversized frame") say(std::string("\x01\x00\x10\x00", 4) + std::string(100, 'x'));
  if (how == "malformed message") say(std::string("\x02\x00\x00\x00\xFF\xFF", 6));
  if (how == "half a frame") {
    say(convoy::encode_frame(hello()).substr(0, 9));
    return 0;
  }
  if (how == "other version" || how == "other role" || how == "no Hello") {
    convoy::proto::FromWorker message = hello();
    if (how == "other version") message.mutable_hello()->set_protocol_version(99);
    if (how == "other role") message.mutable_hello()->set_role("postman");
    if (how == "no Hello") message.mutable_links_opened();
    say(convoy::encode_frame(message));
  }
  if (how == "a descriptor") say_with_descriptor(convoy::encode_frame(hello()));
  if (how == "Hello twice") say(convoy::encode_frame(hello()) + convoy::encode_frame(hello()));
  if (how == "garbage for Loaded") {
    say(convoy::encode_frame(hello()));
    if (await_frames(2)) say(std::string(3000, '\xA7'));
  }
  while (await_frames(1)) {
  }
  return 0;
}

}  // namespace

int main() {
  const char* how = std::getenv("FAKE_WORKER_DOES");
  std::fprintf(stderr, "fake worker: %s\n", how == nullptr ? "nothing" : how);
  return misbehave(how == nullptr ? "" : how);
}
