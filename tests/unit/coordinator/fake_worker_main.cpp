// A stage worker that misbehaves. What it does comes from its file name, fake-worker-<mode>: the
// pool gives every worker the same arguments. It cuts and makes frames by hand, so that it agrees
// with the coordinator only on the documented format.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "control.pb.h"

namespace {

namespace proto = convoy::proto;
int g_socket = -1;  // from --control-fd

void write_bytes(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(g_socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) std::_Exit(90);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

std::string frame_of(const std::string& payload) {
  std::string frame;
  for (int i = 0; i < 4; ++i)
    frame.push_back(static_cast<char>((payload.size() >> (8 * i)) & 0xff));
  return frame + payload;
}

void send(const proto::FromWorker& message) {
  write_bytes(frame_of(message.SerializeAsString()));
}

// False at the end of the conversation. `descriptors` counts what came along.
bool receive(proto::ToWorker& message, int& descriptors) {
  std::string frame;
  size_t wanted = 4;
  descriptors = 0;
  while (frame.size() < wanted) {
    std::array<char, 4096> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
    iovec vector{bytes.data(), std::min(bytes.size(), wanted - frame.size())};
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(g_socket, &header, 0);
    if (count <= 0) return false;
    if (const cmsghdr* c = CMSG_FIRSTHDR(&header))
      descriptors += static_cast<int>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    frame.append(bytes.data(), static_cast<size_t>(count));
    if (frame.size() == 4) {
      for (size_t i = 0; i < 4; ++i)
        wanted += size_t{static_cast<unsigned char>(frame[i])} << (8 * i);
    }
  }
  return message.ParseFromString(frame.substr(4));
}

proto::FromWorker hello() {
  proto::FromWorker message;
  message.mutable_hello()->set_protocol_version(3);
  message.mutable_hello()->set_role("stage_worker");
  message.mutable_hello()->set_build_version("fake");
  message.mutable_hello()->set_pid(::getpid());
  return message;
}

[[noreturn]] void hang() {
  for (;;) ::pause();
}

void send_error(proto::StageError::Code code, const char* text) {
  proto::FromWorker message;
  message.mutable_error()->set_code(code);
  message.mutable_error()->set_message(text);
  send(message);
}

// Ends the process for modes that end before the conversation, else returns.
void before_hello(std::string_view mode) {
  if (mode == "garbage") write_bytes("GET / HTTP/1.1\r\n\r\n");
  if (mode == "malformed") write_bytes(frame_of("\xff\xff\xff\xff"));
  if (mode == "empty") write_bytes(frame_of(""));
  if (mode == "oversized") write_bytes(std::string("\x01\x00\x10\x00", 4));
  if (mode == "exits7") std::_Exit(7);
  if (mode == "closes") {
    ::close(g_socket);
    hang();
  }
  if (mode == "silent") hang();
  if (mode == "unannounced") {
    proto::FromWorker message;
    message.mutable_loaded();
    send(message);
  }
}

proto::FromWorker hello_of(std::string_view mode) {
  proto::FromWorker message = hello();
  if (mode == "version") message.mutable_hello()->set_protocol_version(99);
  if (mode == "role") message.mutable_hello()->set_role("printer");
  if (mode == "busy") message.mutable_hello()->set_busy(true);
  return message;
}

void on_load(std::string_view mode) {
  if (mode == "segfaults") {
    write_bytes(frame_of(hello().SerializeAsString()).substr(0, 9));  // dies inside a frame
    ::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  }
  if (mode == "model-error") {
    // More than one read, so that the process is gone before its last words are heard.
    proto::FromWorker chatter;
    chatter.mutable_health()->set_last_error(std::string(150'000, 'x'));
    send(chatter);
    send_error(proto::StageError::MODEL, "model-00002.safetensors is damaged");
    std::_Exit(1);
  }
  if (mode == "late-garbage") write_bytes(std::string(4, '\xff'));
  proto::FromWorker message;
  message.mutable_load_progress()->set_loaded_bytes(5);
  message.mutable_load_progress()->set_total_bytes(10);
  send(message);
  message.mutable_loaded()->mutable_device()->set_threads(77);
  send(message);
}

void converse(std::string_view mode) {
  proto::ToWorker message;
  int descriptors = 0;
  while (receive(message, descriptors)) {
    proto::FromWorker answer;
    switch (message.body_case()) {
      case proto::ToWorker::kLoadStage:
        on_load(mode);
        break;
      case proto::ToWorker::kOpenLinks:
        if (mode == "no-links") break;
        if (descriptors != 3) std::_Exit(91);
        answer.mutable_links_opened();
        send(answer);
        break;
      case proto::ToWorker::kGetHealth:
        if (mode == "no-health") break;
        if (mode == "link-error") send_error(proto::StageError::LINK, "a transfer came twice");
        if (mode == "dies-serving") std::_Exit(7);
        answer.mutable_health()->set_pid(::getpid());
        send(answer);
        break;
      case proto::ToWorker::kAdmission:
        if (mode == "no-admission") break;
        if (mode == "dies-admitting") std::_Exit(7);
        answer.mutable_admission()->set_sequence(message.admission().sequence());
        answer.mutable_admission()->set_applied(true);
        send(answer);
        break;
      case proto::ToWorker::kShutdown:
        if (mode != "stubborn" && mode != "needs-term") std::_Exit(0);
        break;
      default:
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(60);  // no test leaves one behind for long
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--control-fd") g_socket = std::atoi(argv[i + 1]);
  }
  const std::string_view name = argv[0];
  const std::string_view mode = name.substr(name.rfind("fake-worker-") + 12);
  if (mode == "stubborn") ::signal(SIGTERM, SIG_IGN);
  std::fprintf(stderr, "first line\nmode %s\n\n", std::string(mode).c_str());
  before_hello(mode);
  send(hello_of(mode));
  converse(mode);
  if (mode == "stubborn" || mode == "needs-term") hang();
  return 3;
}
