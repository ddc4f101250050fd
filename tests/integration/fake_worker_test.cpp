// A coordinator whose worker programs are missing, broken or speak nonsense.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

class WorkerProgramTest : public ConvoyTest {
 protected:
  WorkerProgramTest() : bin(scratch.path() / "bin") { fs::create_directory(bin); }
  ProgramCall with_bin(Words words = {}) const {
    words.insert(words.end(), {"--devices", cpus(3), "-p", kPrompt, "-n", "4"});
    ProgramCall call = generate(std::move(words));
    call.environment["CONVOY_BIN_DIR"] = bin.native();
    return call;
  }
  fs::path worker() const { return bin / "convoy-stage-worker"; }
  fs::path bin;
};

TEST_F(WorkerProgramTest, MissingIsSaidWithItsPath) {
  const Ended ended = run(with_bin());
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_EQ(error_line(ended.err),
            "convoy: stage worker program " + worker().native() + ": No such file or directory");
  const Ended up = run([&] {
    ProgramCall call = convoy({"up"});
    call.environment["CONVOY_BIN_DIR"] = bin.native();
    return call;
  }());
  EXPECT_EXIT_CODE(up, 1);
  EXPECT_THAT(error_line(up.err), ::testing::HasSubstr(worker().native()));
}

TEST_F(WorkerProgramTest, NotExecutableIsSaid) {
  write_file(worker(), "#!/bin/sh\n");
  ::chmod(worker().c_str(), 0644);
  const Ended ended = run(with_bin());
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr(worker().native() + ": Permission denied"));
}

TEST_F(WorkerProgramTest, NoProgramAtAllIsSaid) {
  write_file(worker(), std::string(100, '\x7F'));
  ::chmod(worker().c_str(), 0755);
  const Ended ended = run(with_bin());
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr(worker().native() + ": Exec format error"));
}

TEST_F(WorkerProgramTest, TheRealOneIsFoundInTheNamedFolder) {
  fs::create_symlink(fs::path(CONVOY_COORDINATOR).parent_path() / "convoy-stage-worker", worker());
  EXPECT_EXIT_CODE(run(with_bin({"--quiet"})), 0);
}

// Such a start leaves workers that nobody has listed or waits for.
TEST_F(WorkerProgramTest, WorkersOfAPoolEndWithAStarterThatWasKilled) {
  const fs::path real = fs::path(CONVOY_COORDINATOR).parent_path() / "convoy-stage-worker";
  const fs::path go = scratch.path() / "go";
  write_file(worker(), "#!/bin/sh\nwhile [ ! -e " + go.native() + " ]; do sleep 0.01; done\nexec " +
                           real.native() + " \"$@\"\n");
  ::chmod(worker().c_str(), 0755);
  ProgramCall call = convoy({"up", "p", "--devices", cpus(3)});
  call.environment["CONVOY_BIN_DIR"] = bin.native();
  {
    Process starter(call);
    ASSERT_TRUE(eventually([&] { return children_of(starter.pid()).size() == 3; }));
    starter.signal(SIGKILL);
    starter.wait();
  }
  // As if it had been killed before it could list them.
  fs::remove(runtime / "p" / "instance.json");
  Process down(convoy({"down", "p"}));
  EXPECT_FALSE(eventually([&] { return !alive(down.pid()); }, Seconds(0.2)));
  write_file(go, "");
  const Ended ended = down.wait();
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("no pool 'p' is running"));
  EXPECT_TRUE(eventually([&] { return descendants_of(::getpid()).empty(); }, stretched(2)));
  EXPECT_EXIT_CODE(run(convoy({"up", "p", "--devices", cpus(1)})), 0);
  EXPECT_EXIT_CODE(run(convoy({"down", "p"})), 0);
}

struct Fault {
  const char* name;
  const char* how;
  int exit_code;
  const char* said;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.how;
}

class FakeWorkerTest : public WorkerProgramTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(FakeWorkerTest, IsRefusedWithOneClearLine) {
  const Fault& fault = GetParam();
  fs::create_symlink(CONVOY_FAKE_WORKER, worker());
  ProgramCall call = with_bin();
  call.environment["FAKE_WORKER_DOES"] = fault.how;
  const Ended ended = run(call);
  EXPECT_EXIT_CODE(ended, fault.exit_code);
  const std::string line = error_line(ended.err);
  EXPECT_THAT(line, ::testing::ContainsRegex("stage [12] \\(pid [0-9]+, device cpu\\)"));
  EXPECT_THAT(line, ::testing::HasSubstr(fault.said));
  EXPECT_THAT(line,
              ::testing::HasSubstr(std::string("its last log line: fake worker: ") + fault.how));
  EXPECT_EQ(ended.out, "");
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FakeWorkerTest,
    ::testing::Values(Fault{"ExitsAtOnce", "exit at once", 3, "exited with code 7"},
                      Fault{"SaysNothing", "nothing", 1, "did not say Hello within 10 s"},
                      Fault{"Garbage", "garbage", 1, "frame length"},
                      Fault{"OversizedFrame", "oversized frame", 1, "frame length 1048577"},
                      Fault{"MalformedMessage", "malformed message", 1,
                            "malformed message of 2 bytes"},
                      Fault{"HalfAFrame", "half a frame", 3, "exited with code 0"},
                      Fault{"OtherVersion", "other version", 1, "protocol version 99"},
                      Fault{"OtherRole", "other role", 1, "'postman'"},
                      Fault{"NoHello", "no Hello", 1, "did not begin with a Hello"},
                      Fault{"HelloTwice", "Hello twice", 3, "said Hello twice"},
                      Fault{"Descriptor", "a descriptor", 1, "descriptors that nobody asked for"},
                      Fault{"GarbageForLoaded", "garbage for Loaded", 3, "frame length"},
                      Fault{"AbortsAfterHello", "abort after Hello", 3, "killed by signal 6"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace convoy::testing
