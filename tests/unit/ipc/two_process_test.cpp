// Two processes that share nothing but a descriptor: ring and link together, as a coordinator and a
// worker use them.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "shared/ipc/stage_link.h"
#include "shared/ipc/step_ring.h"
#include "tests/unit/ipc/inline_stream.h"
#include "tests/unit/ipc/link_pattern.h"

namespace convoy {
namespace {

constexpr uint32_t kTransfers = 10'000;
constexpr StepRingOptions kRing{.max_columns = 16, .max_deltas = 4, .epoch = 1};
constexpr StageLinkOptions kLink{.slots = 2, .payload_bytes = 1 << 20, .start = {1, 0U - 100}};

bool send_fd(int socket, int fd) {
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return ::sendmsg(socket, &message, 0) == 1;
}

UniqueFd receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, 0) != 1) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return UniqueFd(fd);
}

// Takes a step, then the transfer it names, kTransfers times. The exit code says what went wrong
// first.
int run_worker(int socket) {
  auto ring_region = SharedRegion::open(receive_fd(socket), StepRingWriter::region_bytes(kRing));
  auto link_region = SharedRegion::open(receive_fd(socket), stage_link_region_bytes(kLink));
  if (!ring_region || !link_region) return 2;
  auto ring = StepRingReader::open(ring_region.value());
  auto link = StageLinkReceiver::open(link_region.value(), kLink);
  if (!ring || !link) return 3;
  InlineStream stream;
  std::vector<uint32_t> payload(kLink.payload_bytes / 4);
  for (uint32_t n = 0; n < kTransfers; ++n) {
    const auto step = ring.value().wait_next(10'000);
    if (!step || !step.value()) return 4;
    if (step.value()->header->link_sequence != link.value().next_transfer()) return 5;
    ring.value().release(stream);
    const LinkPattern pattern(link.value().next_transfer(), kLink.payload_bytes);
    const auto got =
        link.value().receive(stream, payload.data(), pattern.bytes(), pattern.columns());
    if (!got || got.value() != Transfer::done) return 6;
    if (pattern.wrong_words(payload.data()) != 0) return 7;
  }
  return ring.value().wait_next(10'000).ok() && ring.value().closed() ? 0 : 8;
}

TEST(TwoProcesses, TenThousandStepsAndTransfersArriveOverPassedDescriptors) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  UniqueFd ours(sockets[0]);
  UniqueFd theirs(sockets[1]);
  const pid_t worker = ::fork();
  ASSERT_GE(worker, 0);
  if (worker == 0) {
    ours.reset();
    ::_exit(run_worker(theirs.get()));
  }
  theirs.reset();
  SharedRegion ring_region = SharedRegion::create("ring", StepRingWriter::region_bytes(kRing));
  SharedRegion link_region = SharedRegion::create("link", stage_link_region_bytes(kLink));
  StepRingWriter ring(ring_region, kRing);
  StageLinkSender link(link_region, kLink);
  ASSERT_TRUE(send_fd(ours.get(), ring_region.fd()) && send_fd(ours.get(), link_region.fd()));
  std::thread coordinator([&] {
    InlineStream stream;
    std::vector<uint32_t> payload(kLink.payload_bytes / 4);
    for (uint32_t n = 0; n < kTransfers; ++n) {
      const auto begun = ring.begin(10'000);
      ASSERT_TRUE(begun.ok() && begun.value().has_value());
      StepHeader& header = *begun.value()->header;
      header.kind = StepKind::decode;
      header.lanes = 1;
      header.width = 1;
      header.link_sequence = link.next_transfer();
      begun.value()->control[0] = ControlRow{};
      ring.publish();
      const LinkPattern pattern(link.next_transfer(), kLink.payload_bytes);
      pattern.fill(payload.data());
      if (link.send(stream, payload.data(), pattern.bytes(), pattern.columns(), pattern.live()) ==
          Transfer::aborted) {
        return;
      }
    }
    ring.close();
  });
  int status = -1;
  EXPECT_EQ(::waitpid(worker, &status, 0), worker);
  link.release_waiters();  // frees the thread when the worker left early
  coordinator.join();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TwoProcesses, AKilledReceiverLeavesASenderThatItsOwnSideCanRelease) {
  const StageLinkOptions options{.slots = 1, .payload_bytes = 64, .start = {}};
  SharedRegion region = SharedRegion::create("link", stage_link_region_bytes(options));
  StageLinkSender sender(region, options);
  const pid_t worker = ::fork();
  ASSERT_GE(worker, 0);
  if (worker == 0) {
    auto receiver = StageLinkReceiver::open(region, options);
    InlineStream stream;
    int value = 0;
    for (int i = 0; i < 3; ++i) {
      if (!receiver || !receiver.value().receive(stream, &value, sizeof(value))) ::_exit(1);
    }
    ::raise(SIGKILL);
  }
  std::thread blocked([&] {
    InlineStream stream;
    int value = 0;
    while (sender.send(stream, &value, sizeof(value), 1, {}) == Transfer::done) ++value;
  });
  int status = 0;
  EXPECT_EQ(::waitpid(worker, &status, 0), worker);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  sender.release_waiters();
  blocked.join();
  // Three were drained and one more fits: none was sent after that.
  EXPECT_GE(sender.next_transfer(), 3u);
  EXPECT_LE(sender.next_transfer(), 4u);
}

}  // namespace
}  // namespace convoy
