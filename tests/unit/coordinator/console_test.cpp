#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

#include "base/exit_code.h"
#include "base/unique_fd.h"
#include "coordinator/console/output.h"
#include "coordinator/console/progress.h"
#include "coordinator/console/table.h"

namespace convoy {
namespace {

using testing::HasSubstr;

TEST(FormatTable, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(
      format_table({{"stage", "device", "bytes"}, {"0", "cpu", "12345"}, {"10", "cuda:10", "1"}}),
      "stage   device  bytes\n"
      "0          cpu  12345\n"
      "10     cuda:10      1\n");
  EXPECT_EQ(format_table({{"stage", "device", "bytes"}, {"0", "cpu", "12345"}}, {1}),
            "stage  device  bytes\n"
            "0      cpu     12345\n");
}

TEST(FormatTable, RaggedAndEmptyRowsLeaveNoTrailingSpaces) {
  EXPECT_EQ(format_table({}), "");
  EXPECT_EQ(format_table({{}}), "\n");
  EXPECT_EQ(format_table({{"a"}, {"bb", "c"}, {"", ""}}), "a\nbb  c\n\n");
}

TEST(FormatBytes, UnitsAndRounding) {
  EXPECT_EQ(format_kv(3 << 20, "int8"), "3.0 MiB int8");
  EXPECT_EQ(format_kv(0, "int8"), "0 B");
  EXPECT_EQ(format_kv(512, ""), "512 B");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536 * 1024), "1.5 MiB");
  EXPECT_EQ(format_bytes(29313150157), "27.3 GiB");
  EXPECT_EQ(format_bytes((uint64_t{1} << 20) - 1), "1.0 MiB");  // never 1024.0 KiB
  EXPECT_EQ(format_bytes((uint64_t{1} << 40) - 1), "1.0 TiB");
  EXPECT_EQ(format_bytes(~uint64_t{0}), "16777216.0 TiB");
}

/// Puts `fd` in the place of stdout or stderr for as long as it lives.
class Redirection {
 public:
  Redirection(int target, int fd) : target_(target), saved_(::dup(target)) {
    std::fflush(nullptr);
    ::dup2(fd, target);
  }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;
  ~Redirection() {
    std::fflush(nullptr);
    ::dup2(saved_.get(), target_);
  }

 private:
  int target_;
  UniqueFd saved_;
};

std::array<UniqueFd, 2> make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string read_all(const UniqueFd& fd) {
  std::string text;
  std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t count = ::read(fd.get(), bytes.data(), bytes.size());
    if (count <= 0) return text;
    text.append(bytes.data(), static_cast<size_t>(count));
  }
}

TEST(WriteStdout, WritesAllToASlowReaderEvenWithoutBlocking) {
  auto [reader, writer] = make_pipe();
  ::fcntl(writer.get(), F_SETFL, O_NONBLOCK);  // as a pipe shared with another program may be
  const std::string text(1'000'000, 'x');
  std::string got;
  std::thread slow([&got, &pipe_end = reader] { got = read_all(pipe_end); });
  WriteResult result = WriteResult::closed;
  {
    const Redirection redirection(STDOUT_FILENO, writer.get());
    result = write_stdout(text);
  }
  writer.reset();
  slow.join();
  EXPECT_EQ(result, WriteResult::written);
  EXPECT_EQ(got.size(), text.size());
}

TEST(WriteStdout, AReaderThatLeftIsNoError) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  auto [reader, writer] = make_pipe();
  reader.reset();
  WriteResult result = WriteResult::written;
  {
    const Redirection redirection(STDOUT_FILENO, writer.get());
    result = write_stdout("text");
  }
  ::signal(SIGPIPE, before);
  EXPECT_EQ(result, WriteResult::closed);
}

TEST(WriteStdout, AFullDiskIsAStartError) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full) GTEST_SKIP() << "no /dev/full here";
  std::string message;
  {
    const Redirection redirection(STDOUT_FILENO, full.get());
    try {
      (void)write_stdout("text");
    } catch (const StartError& error) {
      message = error.what();
    }
  }
  EXPECT_THAT(message, HasSubstr("No space left"));
}

TEST(WriteStderr, WhatCannotBeWrittenIsDropped) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const UniqueFd unwritable(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto [reader, writer] = make_pipe();
  for (const int fd : {full.get(), unwritable.get(), writer.get()}) {
    const Redirection redirection(STDERR_FILENO, fd);
    reader.reset();
    EXPECT_NO_THROW(write_stderr("text"));
  }
  ::signal(SIGPIPE, before);
  auto [good_reader, good_writer] = make_pipe();
  {
    const Redirection redirection(STDERR_FILENO, good_writer.get());
    write_stderr("text\n");
  }
  good_writer.reset();
  EXPECT_EQ(read_all(good_reader), "text\n");
}

std::string progress_lines(ProgressDisplay::Mode mode) {
  auto [reader, writer] = make_pipe();
  {
    const Redirection redirection(STDERR_FILENO, writer.get());
    ProgressDisplay display(mode);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2300);
    while (std::chrono::steady_clock::now() < end) {
      display.update({{50, 200}, {0, 0}, {900, 300}});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    display.finish();
    display.update({{200, 200}});
  }
  writer.reset();
  return read_all(reader);
}

TEST(Progress, WithoutATerminalOnePlainLineNowAndThen) {
  EXPECT_EQ(progress_lines(ProgressDisplay::Mode::automatic),
            "loading: stage 0 25% stage 1 0% stage 2 100%\n");
}

TEST(Progress, SilentIsSilent) {
  EXPECT_EQ(progress_lines(ProgressDisplay::Mode::silent), "");
}

}  // namespace
}  // namespace convoy
