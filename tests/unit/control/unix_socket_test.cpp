#include "shared/control/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>

#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(UnixSocket, ConnectReachesListenAndNeitherIsInherited) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  const auto listener = listen_unix(path);
  ASSERT_TRUE(listener.ok());
  const auto client = connect_unix(path, 1000);
  ASSERT_TRUE(client.ok());
  const UniqueFd accepted(::accept4(listener.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(accepted);
  for (const int fd : {listener.value().get(), client.value().get()})
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(listener.value().get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(client.value().get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(UnixSocket, PathsThatDoNotFitAreNamedWithBothNumbers) {
  const std::filesystem::path longest = "/tmp/" + std::string(102, 'x');
  const std::filesystem::path path = longest.native() + "x";
  ASSERT_EQ(path.native().size(), 108U);
  EXPECT_THAT(listen_unix(path).error(),
              AllOf(HasSubstr(path.native()), HasSubstr("108 bytes"), HasSubstr("107")));
  EXPECT_THAT(connect_unix(path, 100).error(), HasSubstr("108 bytes"));
  EXPECT_THAT(connect_unix(longest, 100).error(), HasSubstr("No such file"));
  ASSERT_TRUE(listen_unix(longest).ok());
  std::filesystem::remove(longest);
}

TEST(UnixSocket, ListenErrorsNameThePath) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  const auto listener = listen_unix(path);
  ASSERT_TRUE(listener.ok());
  EXPECT_THAT(listen_unix(path).error(), AllOf(HasSubstr(path.native()), HasSubstr("in use")));
  EXPECT_THAT(listen_unix(directory.path() / "none" / "s").error(), HasSubstr("No such file"));
}

TEST(UnixSocket, ConnectErrorsNameThePath) {
  const TemporaryDirectory directory;
  EXPECT_THAT(connect_unix(directory.path() / "none", 100).error(),
              AllOf(HasSubstr("none"), HasSubstr("No such file")));
  std::ofstream(directory.path() / "file") << "x";
  EXPECT_THAT(connect_unix(directory.path() / "file", 100).error(), HasSubstr("refused"));
  { ASSERT_TRUE(listen_unix(directory.path() / "dead").ok()); }
  EXPECT_THAT(connect_unix(directory.path() / "dead", 100).error(), HasSubstr("refused"));
}

TEST(UnixSocket, ConnectToAFullBacklogGivesUpInTime) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  const auto listener = listen_unix(path);
  ASSERT_TRUE(listener.ok());
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 100; ++i) {
    auto client = connect_unix(path, 200);
    if (client.ok()) {
      waiting.push_back(std::move(client).value());
      continue;
    }
    EXPECT_THAT(client.error(), HasSubstr("not answering within 200 ms"));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(connect_unix(path, 200).ok());
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took, std::chrono::milliseconds(150));
    EXPECT_LT(took, std::chrono::seconds(5));
    return;
  }
  FAIL() << "the backlog never filled";
}

}  // namespace
}  // namespace convoy
