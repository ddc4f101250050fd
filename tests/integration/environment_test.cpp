// Runtime directories that are foreign, open, stale or shared, and a tiny /dev/shm.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

class RuntimeDirTest : public ConvoyTest {
 protected:
  Ended two_stages(Words words = {}) const {
    words.insert(words.end(), {"--devices", cpus(2), "-p", kPrompt, "-n", "2", "--quiet"});
    return run(generate(std::move(words)));
  }
  void expect_refused(const std::string& reason) const {
    for (const ProgramCall& call : {generate({"-p", kPrompt, "-n", "1"}), convoy({"health"}),
                                    convoy({"up"}), convoy({"down"})}) {
      const Ended ended = run(call);
      EXPECT_EXIT_CODE(ended, 1);
      EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr(runtime.native()))
          << call.arguments.front();
      EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr(reason)) << call.arguments.front();
      EXPECT_EQ(ended.out, "");
    }
  }
};

TEST_F(RuntimeDirTest, ForeignIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a folder to another user needs root";
  fs::create_directory(runtime);
  fs::permissions(runtime, fs::perms::owner_all);
  ASSERT_EQ(::chown(runtime.c_str(), 12345, 12345), 0);
  expect_refused("belongs to user 12345");
}

TEST_F(RuntimeDirTest, OpenToOthersIsRefused) {
  fs::create_directory(runtime);
  fs::permissions(runtime, static_cast<fs::perms>(0755));
  expect_refused("mode 755");
}

TEST_F(RuntimeDirTest, ALinkIsRefused) {
  fs::create_directory(scratch.path() / "elsewhere");
  fs::permissions(scratch.path() / "elsewhere", fs::perms::owner_all);
  fs::create_directory_symlink(scratch.path() / "elsewhere", runtime);
  expect_refused("symbolic link");
  EXPECT_TRUE(fs::is_empty(scratch.path() / "elsewhere"));
}

TEST_F(RuntimeDirTest, AFileIsRefused) {
  write_file(runtime, "");
  expect_refused("not a directory");
}

TEST_F(RuntimeDirTest, APathTooLongForSocketsIsRefusedByLength) {
  ProgramCall call = generate({"-p", kPrompt, "-n", "1"});
  call.arguments.back() = (scratch.path() / std::string(90, 'd')).native();
  const Ended ended = run(call);
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("at most 107 are possible"));
}

TEST_F(RuntimeDirTest, IsMadePrivateAndLeftEmpty) {
  EXPECT_EXIT_CODE(two_stages(), 0);
  struct stat info {};
  ASSERT_EQ(::stat(runtime.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
}

// What is no instance's is never removed, whatever it is called.
TEST_F(RuntimeDirTest, FoldersOfOthersStay) {
  fs::create_directory(runtime);
  fs::permissions(runtime, fs::perms::owner_all);
  fs::create_directory(runtime / "notes");
  write_file(runtime / "notes" / "diary", "dear");
  fs::create_directory(runtime / "run");
  const Ended taken = two_stages({"--instance", "run"});
  EXPECT_EXIT_CODE(taken, 1);
  EXPECT_THAT(error_line(taken.err), ::testing::HasSubstr("exists and is no instance of Convoy"));
  EXPECT_EXIT_CODE(two_stages(), 0);
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);
  EXPECT_EQ(read_file(runtime / "notes" / "diary"), "dear");
  fs::remove_all(runtime / "notes");
  fs::remove_all(runtime / "run");
}

TEST_F(RuntimeDirTest, ADeadInstanceIsSweptWithSocketsAndLogsInIt) {
  {
    Process coordinator(held_generate(cpus(2), "1:decode:1", {"--instance", "dead"}));
    await_state(1, "held");
    coordinator.signal(SIGKILL);
    coordinator.wait();
  }
  EXPECT_TRUE(fs::exists(runtime / "dead" / "health-0.sock"));
  write_file(runtime / "dead" / "more", "litter");
  EXPECT_EXIT_CODE(two_stages({"--instance", "dead"}), 0);
}

TEST_F(RuntimeDirTest, TwoInstancesLiveSideBySideAndANameIsTakenOnce) {
  Process first(held_generate(cpus(3), "1:decode:2", {"--instance", "name"}));
  await_state(1, "held", "name");
  const Ended same = two_stages({"--instance", "name"});
  EXPECT_EXIT_CODE(same, 1);
  EXPECT_THAT(error_line(same.err), ::testing::HasSubstr("instance 'name' is already running"));
  EXPECT_EXIT_CODE(two_stages({"--instance", "other"}), 0);
  EXPECT_EXIT_CODE(two_stages(), 0);
  EXPECT_EQ(stage(1, "name").state, "held");
  EXPECT_EXIT_CODE(run(convoy({"health"})), 0);
  first.signal(SIGINT);
  EXPECT_EQ(first.wait().signal, SIGINT);
}

TEST_F(RuntimeDirTest, ManyStartAtOnce) {
  const std::string text = two_stages().out;
  std::vector<Process> runs;
  for (int i = 0; i < 4; ++i)
    runs.emplace_back(generate({"--devices", cpus(2), "-p", kPrompt, "-n", "2", "--quiet"}));
  for (Process& one : runs) {
    const Ended ended = one.wait();
    EXPECT_EXIT_CODE(ended, 0);
    EXPECT_EQ(ended.out, text);
  }
}

TEST_F(RuntimeDirTest, TheEnvironmentSaysWhereItIs) {
  const auto with = [](ProgramCall call, const char* name, const fs::path& value) {
    call.arguments.resize(call.arguments.size() - 2);  // --runtime-dir
    call.environment[name] = value.native();
    return call;
  };
  const ProgramCall call = held_generate(cpus(2), "1:decode:1", {"--instance", "x"});
  const fs::path base = scratch.path() / "x";
  fs::create_directory(base);
  Process by_xdg(with(call, "XDG_RUNTIME_DIR", base));
  EXPECT_TRUE(eventually([&] { return fs::exists(base / "convoy" / "x" / "health-1.sock"); }));
  by_xdg.signal(SIGINT);
  EXPECT_EQ(by_xdg.wait().signal, SIGINT);
  Process by_twin(with(call, "CONVOY_RUNTIME_DIR", runtime));
  await_state(1, "held", "x");
  by_twin.signal(SIGINT);
  EXPECT_EQ(by_twin.wait().signal, SIGINT);
}

// Containers give 64 MiB or less; segments come from memfd, which that does not limit.
TEST_F(RuntimeDirTest, SharedMemoryOf16MiBIsEnoughForSegmentsOf64) {
  const Words words{"--devices", cpus(6), "--prefill-chunk", "4096"};
  Words plan{"plan", "--json", "-m", bundled_model_path().native()};
  plan.insert(plan.end(), words.begin(), words.end());
  const auto object = json_of(run(convoy(plan)));
  uint64_t link_bytes = 0;
  for (const json::value& s : object.at("stages").as_array())
    link_bytes += s.at("link_bytes").to_number<uint64_t>();
  ASSERT_GT(link_bytes, 32U << 20U);

  // In a chroot / is no mount, but /dev/shm is.
  ProgramCall inner = generate({"--quiet", "-p", kPrompt, "-n", "8"});
  inner.arguments.insert(inner.arguments.end(), words.begin(), words.end());
  constexpr int kNoMount = 99;
  ProgramCall call{
      .program = "/bin/sh",
      .arguments =
          {"-c",
           "mount --make-rprivate / 2>/dev/null || mount --make-private /dev/shm || exit 99; "
           "mount -t tmpfs -o size=16m none /dev/shm || exit 99; exec \"$@\"",
           "sh", inner.program.native()},
      .environment = {},
      .input = {}};
  call.arguments.insert(call.arguments.end(), inner.arguments.begin(), inner.arguments.end());
  call.arguments.insert(call.arguments.begin(),
                        {"-m", "--propagation", "unchanged", call.program.native()});
  call.program = "/usr/bin/unshare";
  const Ended ended = run(call);
  if (ended.exit_code == kNoMount || ended.err.find("unshare:") != std::string::npos)
    GTEST_SKIP() << "no mount namespaces here: " << ended.err;
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_EQ(ended.out, run(generate({"--quiet", "-p", kPrompt, "-n", "8"})).out);
}

using DriverTest = ConvoyTest;

// The toolkit's stub is a driver that answers every call with an error.
TEST_F(DriverTest, OneThatListsNoDeviceIsSaidWhereAutoTakesTheCpu) {
  const fs::path stub = CONVOY_DRIVER_STUB;
  if (stub.empty()) GTEST_SKIP() << "built without CUDA, or the toolkit has no driver stub";
  const fs::path folder = scratch.path() / "driver";
  fs::create_directory(folder);
  fs::create_symlink(stub, folder / "libcuda.so.1");
  ProgramCall call = convoy({"plan", "-m", bundled_model_path().native(), "--devices", "auto"});
  call.environment["LD_LIBRARY_PATH"] = folder.native();
  call.environment["CUDA_VISIBLE_DEVICES"] = "7";
  const Ended ended = run(call);
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_EQ(ended.err, "devices: cpu: CUDA driver is a stub library (CUDA_VISIBLE_DEVICES=7)\n");
}

}  // namespace
}  // namespace convoy::testing
