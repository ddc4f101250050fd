#include "coordinator/console/result_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <sstream>

#include "base/exit_code.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(text).str();
}

// No file of this process grows beyond `bytes` while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

class ResultFileTest : public testing::Test {
 protected:
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()));
  }
  fs::path put(const std::string& name, const std::string& text) const {
    std::ofstream(scratch_.path() / name) << text;
    return scratch_.path() / name;
  }

  TemporaryDirectory scratch_;
};

TEST_F(ResultFileTest, LeavesNothingUntilItIsWritten) {
  const fs::path path = scratch_.path() / "new";
  ResultFile file("--json", path);
  EXPECT_EQ(files(), 0U);
  file.write("report\n");
  EXPECT_EQ(content(path), "report\n");
  EXPECT_EQ(files(), 1U);
}

TEST_F(ResultFileTest, AFullDiskLeavesWhatWasThere) {
  const fs::path path = put("old", "last year's");
  ResultFile file("--csv", path);
  try {
    const FileSizeLimit limit(8);
    file.write("longer than eight bytes");
    ADD_FAILURE() << "the limit does not count";
  } catch (const StartError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--csv " + path.native() + ": cannot be written: "));
  }
  EXPECT_EQ(content(path), "last year's");
  EXPECT_EQ(files(), 1U);
}

TEST_F(ResultFileTest, ReplacesAFileAtOnceAndKeepsItsPermissions) {
  const fs::path path = put("old", "last year's, and longer");
  fs::permissions(path, fs::perms{0640});
  const fs::path hard_link = scratch_.path() / "still-the-old-one";
  fs::create_hard_link(path, hard_link);
  ResultFile("--json", path).write("new");
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0640});
  EXPECT_EQ(content(hard_link), "last year's, and longer");
}

TEST_F(ResultFileTest, FollowsLinksAndLeavesThem) {
  const fs::path old = put("old", "last year's");
  const fs::path to_old = scratch_.path() / "to-old";
  const fs::path to_new = scratch_.path() / "to-new";
  fs::create_symlink("old", to_old);
  fs::create_symlink("new", to_new);
  ResultFile("--json", to_old).write("a");
  ResultFile("--json", to_new).write("b");
  EXPECT_TRUE(fs::is_symlink(to_old));
  EXPECT_TRUE(fs::is_symlink(to_new));
  EXPECT_EQ(content(old), "a");
  EXPECT_EQ(content(scratch_.path() / "new"), "b");
}

TEST_F(ResultFileTest, WritesIntoAPipeThatStays) {
  const fs::path path = scratch_.path() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  ResultFile("--json", path).write("report");
  std::array<char, 16> got{};
  EXPECT_EQ(::read(reader.get(), got.data(), got.size()), 6);
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_EQ(files(), 1U);
}

TEST_F(ResultFileTest, AddsToTheFileOfAnOpenDescriptor) {
  const fs::path path = put("log", "before\n");
  const UniqueFd log(::open(path.c_str(), O_WRONLY));
  ResultFile("--json", "/dev/fd/" + std::to_string(log.get())).write("report\n");
  EXPECT_EQ(content(path), "before\nreport\n");
  struct stat named {};
  struct stat opened {};
  ASSERT_EQ(::stat(path.c_str(), &named), 0);
  ASSERT_EQ(::fstat(log.get(), &opened), 0);
  EXPECT_EQ(named.st_ino, opened.st_ino);
}

// The name of a temporary file would be too long, which fails for root, too.
TEST_F(ResultFileTest, WritesIntoAFileThatNothingCanTakeThePlaceOf) {
  const std::string name(250, 'n');
  const fs::path path = put(name, "last year's");
  ResultFile("--json", path).write("new");
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(files(), 1U);
}

TEST_F(ResultFileTest, SaysBeforehandWhatCannotBeWritten) {
  EXPECT_THROW(ResultFile("--json", scratch_.path()), StartError);
  EXPECT_THROW(ResultFile("--json", scratch_.path() / "nowhere" / "report"), StartError);
  EXPECT_THROW(ResultFile("--json", put("file", "") / "report"), StartError);
}

TEST_F(ResultFileTest, KnowsStdoutByItsNames) {
  EXPECT_TRUE(is_stdout("-"));
  EXPECT_FALSE(is_stdout(put("file", "")));
  EXPECT_FALSE(is_stdout(scratch_.path() / "nowhere"));
  const UniqueFd before(::dup(STDOUT_FILENO));
  const fs::path path = put("out", "");
  const UniqueFd out(::open(path.c_str(), O_WRONLY));
  ASSERT_EQ(::dup2(out.get(), STDOUT_FILENO), STDOUT_FILENO);
  EXPECT_TRUE(is_stdout("/dev/stdout"));
  EXPECT_TRUE(is_stdout(path));
  const UniqueFd null(::open("/dev/null", O_WRONLY));
  ASSERT_EQ(::dup2(null.get(), STDOUT_FILENO), STDOUT_FILENO);
  EXPECT_FALSE(is_stdout("/dev/null"));
  ::dup2(before.get(), STDOUT_FILENO);
}

}  // namespace
}  // namespace convoy
