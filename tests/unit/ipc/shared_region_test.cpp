#include "shared/ipc/shared_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "base/exit_code.h"

namespace convoy {
namespace {

using testing::HasSubstr;

std::string create_error(const std::string& label, size_t bytes) {
  try {
    SharedRegion::create(label, bytes);
  } catch (const StartError& error) {
    return error.what();
  }
  return "no error";
}

std::string open_error(int fd, size_t expected_bytes) {
  const auto opened = SharedRegion::open(UniqueFd(fd), expected_bytes, "seg");
  return opened.ok() ? "no error" : opened.error();
}

TEST(SharedRegion, IsZeroedAndShowsTheSameBytesThroughASecondMapping) {
  const SharedRegion region = SharedRegion::create("seg", 10'000);
  ASSERT_EQ(region.bytes(), 10'000u);
  auto* bytes = static_cast<unsigned char*>(region.data());
  for (size_t i = 0; i < region.bytes(); ++i) ASSERT_EQ(bytes[i], 0);
  auto other = SharedRegion::open(UniqueFd(::dup(region.fd())), 10'000);
  ASSERT_TRUE(other.ok()) << other.error();
  bytes[9'999] = 77;
  EXPECT_EQ(static_cast<unsigned char*>(other.value().data())[9'999], 77);
  EXPECT_NE(other.value().data(), region.data());
}

TEST(SharedRegion, ASealedRegionCanBeNeitherShrunkNorGrown) {
  const SharedRegion region = SharedRegion::create("seg", 8192);
  EXPECT_EQ(::ftruncate(region.fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(region.fd(), 16384), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedRegion, DescriptorsAreCloseOnExecOnBothSides) {
  const SharedRegion region = SharedRegion::create("seg", 4096);
  EXPECT_EQ(::fcntl(region.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  // dup() clears the flag, as does receiving a descriptor without MSG_CMSG_CLOEXEC.
  auto other = SharedRegion::open(UniqueFd(::dup(region.fd())), 4096);
  ASSERT_TRUE(other.ok()) << other.error();
  EXPECT_EQ(::fcntl(other.value().fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedRegion, AMovedRegionKeepsItsAddressAndLeavesAnEmptyOne) {
  SharedRegion region = SharedRegion::create("seg", 4096);
  void* const address = region.data();
  const SharedRegion moved = std::move(region);
  EXPECT_EQ(moved.data(), address);
  EXPECT_EQ(region.data(), nullptr);  // NOLINT(bugprone-use-after-move): documented state
  EXPECT_EQ(region.bytes(), 0u);
  EXPECT_EQ(region.fd(), -1);
}

TEST(SharedRegion, TheLastOwnerGivesTheMemoryBack) {
  int fd = -1;
  {
    const SharedRegion region = SharedRegion::create("given_back_seg", 4096);
    fd = region.fd();
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    EXPECT_THAT(line, Not(HasSubstr("given_back_seg")));
  }
}

TEST(SharedRegion, MoreThanTheMachineHasIsAStartErrorWithLabelAndBytes) {
  const std::string error = create_error("link 0 -> 1", size_t{1} << 46);
  EXPECT_THAT(error, HasSubstr("link 0 -> 1"));
  EXPECT_THAT(error, HasSubstr(std::to_string(size_t{1} << 46)));
  EXPECT_THAT(error, HasSubstr("available"));
}

TEST(SharedRegion, ARefusedSizeIsAStartErrorWithTheReason) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = create_error("ring 1", 1 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(error, HasSubstr("ring 1"));
  EXPECT_THAT(error, HasSubstr("1048576"));
  EXPECT_THAT(error, HasSubstr(std::strerror(EFBIG)));
}

TEST(SharedRegion, ReceivedDescriptorsThatAreNoSealedRegionAreRefused) {
  EXPECT_THAT(open_error(-1, 4096), HasSubstr("no descriptor"));
  EXPECT_THAT(open_error(::open("/dev/null", O_RDWR | O_CLOEXEC), 4096),
              HasSubstr("not a sealed memfd"));

  const int without_sealing = ::memfd_create("x", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(without_sealing, 4096), 0);
  EXPECT_THAT(open_error(without_sealing, 4096), HasSubstr("not sealed against shrinking"));

  const int unsealed = ::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, 4096), 0);
  EXPECT_THAT(open_error(unsealed, 4096), HasSubstr("not sealed against shrinking"));
}

TEST(SharedRegion, AReceivedRegionOfAnotherSizeIsRefusedWithBothSizes) {
  const SharedRegion region = SharedRegion::create("seg", 4096);
  EXPECT_THAT(open_error(::dup(region.fd()), 8192), AllOf(HasSubstr("4096"), HasSubstr("8192")));
  EXPECT_THAT(open_error(::dup(region.fd()), 4095), AllOf(HasSubstr("4096"), HasSubstr("4095")));
  EXPECT_EQ(open_error(::dup(region.fd()), 4096), "no error");
}

}  // namespace
}  // namespace convoy
