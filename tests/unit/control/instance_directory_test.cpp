#include "shared/control/instance_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>

#include "base/exit_code.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 0777;
}

std::string start_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const StartError& error) {
    return error.what();
  }
  return "(no error)";
}

std::string create_error(const fs::path& root, const std::string& name = "x") {
  return start_error([&] { InstanceDirectory::create(root, name); });
}

/// A process that does `body` and then waits to be killed; ready() returns when `body` is done.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void()>& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body();
      (void)!::write(ends[1], "r", 1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    ready_ = UniqueFd(ends[0]);
  }
  ~OtherProcess() { kill(); }
  bool ready() {
    char byte = 0;
    return ::read(ready_.get(), &byte, 1) == 1;
  }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd ready_;
};

// Leaves <root>/<name> as a process that was killed leaves it.
void leave_dead_instance(const fs::path& root, const std::string& name) {
  OtherProcess process([&] {
    // Never destroyed: the process is killed.
    new InstanceDirectory(InstanceDirectory::create(root, name));
    std::ofstream(root / name / "stage-1.log") << "last words\n";
    fs::create_directories(root / name / "deep" / "deeper");
  });
  ASSERT_TRUE(process.ready());
}

TEST(InstanceDirectory, CreatesRootAndFolderForTheOwnerAlone) {
  const TemporaryDirectory temporary;
  const fs::path root = temporary.path() / "a" / "convoy";
  {
    const auto instance = InstanceDirectory::create(root, "one");
    EXPECT_EQ(instance.path(), root / "one");
    EXPECT_EQ(instance.name(), "one");
    EXPECT_EQ(mode_of(root), 0700U);
    EXPECT_EQ(mode_of(instance.path()), 0700U);
    EXPECT_NE(::fcntl(instance.lock_fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE(instance_alive(instance.path()));
    EXPECT_THAT(sweep_and_list_instances(root), ElementsAre(root / "one"));
  }
  EXPECT_FALSE(fs::exists(root / "one"));
  EXPECT_FALSE(instance_alive(root / "one"));
  EXPECT_THAT(sweep_and_list_instances(root), IsEmpty());
}

TEST(InstanceDirectory, NamesAreMadeFromThePidAndNeverTwice) {
  const TemporaryDirectory temporary;
  const auto first = InstanceDirectory::create(temporary.path(), "");
  const auto second = InstanceDirectory::create(temporary.path(), "");
  EXPECT_EQ(first.name(), "run-" + std::to_string(::getpid()));
  EXPECT_EQ(second.name(), "run-" + std::to_string(::getpid()) + "-2");
}

TEST(InstanceDirectory, OnlyPlainNamesAreAccepted) {
  const TemporaryDirectory temporary;
  for (const std::string& name :
       {std::string("a/b"), std::string(".."), std::string("."), std::string(".hidden"),
        std::string("/tmp/x"), std::string("a b"), std::string("a\nb"), std::string("\xc3\xa4"),
        std::string(33, 'x')}) {
    EXPECT_THAT(create_error(temporary.path(), name), HasSubstr("is not a word")) << name;
  }
  for (const std::string& name :
       {std::string("a"), std::string(32, 'x'), std::string("A-b_c.9"), std::string("-x")}) {
    EXPECT_EQ(create_error(temporary.path(), name), "(no error)") << name;
  }
}

TEST(InstanceDirectory, WhatCannotBeWrittenIsNamedWithTheReason) {
  const TemporaryDirectory temporary;
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit nothing{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &nothing), 0);
  const std::string error =
      start_error([&] { instance.publish({.name = "one", .kind = "run", .members = {}}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write " + (instance.path() / ".instance.json.new").native() +
                       ": File too large");
}

TEST(InstanceDirectory, ANameInUseIsRefusedAndStaysWhole) {
  const TemporaryDirectory temporary;
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  EXPECT_THAT(create_error(temporary.path(), "one"),
              AllOf(HasSubstr("'one' is already running"), HasSubstr(temporary.path().native())));
  EXPECT_TRUE(instance_alive(instance.path()));
  EXPECT_THAT(sweep_and_list_instances(temporary.path()), ElementsAre(instance.path()));
}

TEST(InstanceDirectory, ANameOfADeadInstanceIsFreeAgain) {
  const TemporaryDirectory temporary;
  leave_dead_instance(temporary.path(), "one");
  ASSERT_TRUE(fs::exists(temporary.path() / "one" / "stage-1.log"));
  EXPECT_FALSE(instance_alive(temporary.path() / "one"));
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  EXPECT_FALSE(fs::exists(temporary.path() / "one" / "stage-1.log"));
}

TEST(InstanceDirectory, SweepRemovesDeadFoldersOnly) {
  const TemporaryDirectory temporary;
  const fs::path& root = temporary.path();
  const auto alive = InstanceDirectory::create(root, "alive");
  leave_dead_instance(root, "dead");
  leave_dead_instance(root, "dead-too");
  EXPECT_THAT(sweep_and_list_instances(root), ElementsAre(root / "alive"));
  EXPECT_TRUE(fs::exists(root / "alive"));
  EXPECT_FALSE(fs::exists(root / "dead"));
  EXPECT_FALSE(fs::exists(root / "dead-too"));
}

// A person may well say --runtime-dir ~ .
TEST(InstanceDirectory, WhatIsNoInstanceIsNeverRemovedNorListed) {
  const TemporaryDirectory temporary;
  const fs::path root = temporary.path() / "home";
  fs::create_directories(root / "thesis");
  fs::create_directories(root / "empty");
  ::chmod(root.c_str(), 0700);
  std::ofstream(root / "thesis" / "lock") << "";
  std::ofstream(root / "notes.txt") << "x";
  fs::create_directories(temporary.path() / "elsewhere");
  leave_dead_instance(temporary.path(), "elsewhere-dead");
  fs::create_directory_symlink(temporary.path() / "elsewhere-dead", root / "link");
  { const auto instance = InstanceDirectory::create(root, "one"); }
  EXPECT_THAT(sweep_and_list_instances(root), IsEmpty());
  for (const char* name : {"thesis/lock", "empty", "notes.txt", "link"})
    EXPECT_TRUE(fs::exists(root / name)) << name;
  EXPECT_TRUE(fs::exists(temporary.path() / "elsewhere-dead" / "stage-1.log"));
  EXPECT_THAT(create_error(root, "thesis"), HasSubstr("is no instance of Convoy"));
  EXPECT_THAT(create_error(root, "notes.txt"), HasSubstr("is no instance of Convoy"));
  EXPECT_THAT(create_error(root, "link"), HasSubstr("link"));
  EXPECT_TRUE(fs::exists(root / "thesis" / "lock"));
}

TEST(InstanceDirectory, ACrashWhileCreatingLeavesNothingForEver) {
  const TemporaryDirectory temporary;
  fs::create_directories(temporary.path() / ".new-instance");
  std::ofstream(temporary.path() / ".new-instance" / "convoy-instance.lock") << "";
  EXPECT_THAT(sweep_and_list_instances(temporary.path()), IsEmpty());
  const auto instance = InstanceDirectory::create(temporary.path(), "one");
  EXPECT_TRUE(instance_alive(instance.path()));
  EXPECT_FALSE(fs::exists(temporary.path() / ".new-instance"));
}

TEST(InstanceDirectory, LivesWhileAnyProcessThatInheritedTheLockLives) {
  const TemporaryDirectory temporary;
  std::optional<InstanceDirectory> instance = InstanceDirectory::create(temporary.path(), "pool");
  const fs::path path = instance->path();
  OtherProcess worker([&] { EXPECT_GE(::dup(instance->lock_fd()), 0); });
  ASSERT_TRUE(worker.ready());
  instance->disown();
  instance.reset();
  EXPECT_TRUE(fs::exists(path)) << "a disowned folder stays";
  EXPECT_TRUE(instance_alive(path));
  EXPECT_THAT(sweep_and_list_instances(temporary.path()), ElementsAre(path));
  EXPECT_THAT(create_error(temporary.path(), "pool"), HasSubstr("already running"));
  worker.kill();
  EXPECT_FALSE(instance_alive(path));
  EXPECT_THAT(sweep_and_list_instances(temporary.path()), IsEmpty());
  EXPECT_FALSE(fs::exists(path));
}

TEST(InstanceDirectory, MovedFromOwnsNothing) {
  const TemporaryDirectory temporary;
  auto first =
      std::make_unique<InstanceDirectory>(InstanceDirectory::create(temporary.path(), "one"));
  const InstanceDirectory second = std::move(*first);
  first.reset();
  EXPECT_TRUE(instance_alive(second.path()));
}

TEST(InstanceDirectory, RootOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const TemporaryDirectory temporary;
  const fs::path root = temporary.path() / "root";
  fs::create_directory(root);
  ::chmod(root.c_str(), 0700);
  ASSERT_EQ(::chown(root.c_str(), 12345, 12345), 0);
  const auto refusal = AllOf(HasSubstr(root.native()), HasSubstr("belongs to user 12345"),
                             HasSubstr("--runtime-dir"));
  EXPECT_THAT(create_error(root), refusal);
  EXPECT_THAT(start_error([&] { sweep_and_list_instances(root); }), refusal);
}

TEST(InstanceDirectory, RootThatIsALinkAFileOrOpenToOthersIsRefused) {
  const TemporaryDirectory temporary;
  const fs::path real = temporary.path() / "real";
  fs::create_directory(real);
  ::chmod(real.c_str(), 0700);
  const fs::path link = temporary.path() / "link";
  fs::create_directory_symlink(real, link);
  const fs::path file = temporary.path() / "file";
  std::ofstream(file) << "x";
  for (const auto& [root, what] : {std::pair(link, "is a symbolic link"),
                                   std::pair(fs::path(link.native() + "/"), "is a symbolic link"),
                                   std::pair(file, "is not a directory")}) {
    EXPECT_THAT(create_error(root), HasSubstr(what)) << root;
    EXPECT_THAT(start_error([&, r = root] { sweep_and_list_instances(r); }), HasSubstr(what))
        << root;
  }
  for (const mode_t mode : {0755U, 0710U, 0701U, 0777U}) {
    ::chmod(real.c_str(), mode);
    EXPECT_THAT(create_error(real), HasSubstr("is open to other users")) << mode;
  }
  EXPECT_THAT(create_error(file / "below"), HasSubstr("cannot create runtime directory"));
}

TEST(InstanceDirectory, ARootThatDoesNotExistHasNoInstances) {
  const TemporaryDirectory temporary;
  EXPECT_THAT(sweep_and_list_instances(temporary.path() / "none"), IsEmpty());
  EXPECT_FALSE(fs::exists(temporary.path() / "none"));
}

TEST(InstanceDirectory, ATrailingSlashNamesTheSameRoot) {
  const TemporaryDirectory temporary;
  const fs::path root = temporary.path() / "new";
  const auto instance = InstanceDirectory::create(root.native() + "/", "one");
  EXPECT_EQ(instance.path(), root / "one");
  EXPECT_EQ(mode_of(root), 0700U);
  EXPECT_THAT(sweep_and_list_instances(root.native() + "/"), ElementsAre(root / "one"));
  EXPECT_EQ(runtime_root(root.native() + "/"), root);
}

TEST(InstanceDirectory, OfManyCreatorsAtOnceOneGetsTheName) {
  const TemporaryDirectory temporary;
  const fs::path root = temporary.path() / "root";
  leave_dead_instance(root, "one");  // which all of them sweep
  constexpr int kCreators = 6;
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  std::vector<pid_t> pids;
  for (int i = 0; i < kCreators; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      char byte;
      ::close(go[1]);
      (void)!::read(go[0], &byte, 1);  // all begin when the pipe closes
      try {
        // Never destroyed, so the winner's folder stays until it exits.
        new InstanceDirectory(InstanceDirectory::create(root, "one"));
        ::usleep(1'000'000);
        ::_exit(0);
      } catch (const StartError& error) {
        ::_exit(std::string(error.what()).find("already running") != std::string::npos ? 1 : 2);
      }
    }
    pids.push_back(pid);
  }
  ::close(go[0]);
  ::close(go[1]);
  std::vector<int> codes;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    codes.push_back(WEXITSTATUS(status));
  }
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 0), 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 1), kCreators - 1);
}

TEST(InstanceDirectory, ComingAndGoingAtOnceNeverHarmsAnother) {
  const TemporaryDirectory temporary;
  std::vector<pid_t> pids;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int round = 0; round < 40; ++round) {
        try {
          const auto instance = InstanceDirectory::create(temporary.path(), "shared");
          std::ofstream(instance.path() / "mine") << i;
          ::usleep(500);
          std::string text;
          std::ifstream(instance.path() / "mine") >> text;
          if (text != std::to_string(i) || !instance_alive(instance.path())) ::_exit(3);
        } catch (const StartError& error) {
          if (std::string(error.what()).find("already running") == std::string::npos) ::_exit(4);
        }
      }
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_THAT(sweep_and_list_instances(temporary.path()), IsEmpty());
}

}  // namespace
}  // namespace convoy
