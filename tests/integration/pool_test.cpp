// convoy up, generate --attach, convoy down.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

class PoolTest : public ConvoyTest {
 protected:
  void up(int workers, const std::string& name = "p") const {
    const Ended ended = run(convoy({"up", name, "--devices", cpus(workers)}));
    ASSERT_TRUE(ended.exit_code == 0) << ended.err;
  }
  void down(const std::string& name = "p") const {
    const std::vector<pid_t> workers = children_of(::getpid());
    EXPECT_EXIT_CODE(run(convoy({"down", name})), 0);
    EXPECT_TRUE(gone_within(workers, stretched(0.2)));
    expect_nothing_left();
  }
  ProgramCall attached(Words words = {}) const {
    words.insert(words.end(), {"--attach", "p", "-p", kPrompt, "--quiet"});
    return generate(std::move(words));
  }
  // A worker's resident memory in bytes.
  static uint64_t resident_bytes(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
    uint64_t total = 0, resident = 0;
    in >> total >> resident;
    return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
};

TEST_F(PoolTest, GivesTheSameBytesAsSpawnedWorkersTimeAfterTime) {
  const Ended spawned = run(generate({"--quiet", "--devices", cpus(3), "-p", kPrompt, "-n", "24"}));
  up(2);
  for (int i = 0; i < 4; ++i) {
    const Ended ended = run(attached({"-n", "24"}));
    EXPECT_EXIT_CODE(ended, 0);
    EXPECT_EQ(ended.out, spawned.out);
  }
  down();
}

TEST_F(PoolTest, WaitsFreesAndWaitsAgain) {
  up(2);
  const StageState before = await_state(1, "waiting");
  EXPECT_EQ(before.all.at("weight_bytes").to_number<uint64_t>(), 0U);
  const uint64_t idle = resident_bytes(before.pid);
  {
    ProgramCall call = attached({"-n", "8", "--instance", "user"});
    call.environment["CONVOY_TEST_HOLD"] = "2:decode:3";
    Process coordinator(call);
    await_state(2, "held", "p");
    const auto loaded = stage(1, "p").all.at("weight_bytes").to_number<uint64_t>();
    EXPECT_GT(loaded, 1'000'000U);
    EXPECT_GT(resident_bytes(before.pid), idle + loaded / 2);
    coordinator.signal(SIGINT);
    EXPECT_EQ(coordinator.wait().signal, SIGINT);
  }
  const StageState after = await_state(1, "waiting", "p");
  EXPECT_EQ(after.pid, before.pid);
  EXPECT_EQ(after.all.at("weight_bytes").to_number<uint64_t>(), 0U);
  // The C library keeps a little; the weights and planes of the stage are more than 10 MB. A
  // sanitizer's shadow memory is resident too.
  if (CONVOY_TEST_TIME_FACTOR == 1) {
    EXPECT_LT(resident_bytes(after.pid), idle + 6'000'000);
  }
  down();
}

TEST_F(PoolTest, ServesOneCoordinatorAtATime) {
  up(1);
  ProgramCall call = attached({"-n", "8"});
  call.environment["CONVOY_TEST_HOLD"] = "1:decode:3";
  Process first(call);
  await_state(1, "held", "p");
  const Ended second = run(attached({"-n", "8"}));
  EXPECT_EXIT_CODE(second, 1);
  EXPECT_EQ(error_line(second.err), "convoy: stage 1 (pid " + std::to_string(stage(1, "p").pid) +
                                        ", device cpu) serves another coordinator");
  EXPECT_EQ(stage(1, "p").state, "held");
  first.signal(SIGINT);
  EXPECT_EQ(first.wait().signal, SIGINT);
  EXPECT_EXIT_CODE(run(attached({"-n", "8"})), 0);
  down();
}

class PoolLossTest : public PoolTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(PoolLossTest, SurvivesTheDeathOfItsCoordinator) {
  up(2);
  const pid_t worker = await_state(1, "waiting").pid;
  ProgramCall call = attached({"-n", "8"});
  call.environment["CONVOY_TEST_HOLD"] = GetParam();
  {
    Process coordinator(call);
    await_state(GetParam().front() - '0', "held");
    coordinator.signal(SIGKILL);
    coordinator.wait();
  }
  const StageState after = await_state(1, "waiting", "p");
  EXPECT_EQ(after.pid, worker);
  EXPECT_EQ(after.all.at("weight_bytes").to_number<uint64_t>(), 0U);
  await_state(2, "waiting", "p");
  EXPECT_EXIT_CODE(run(attached({"-n", "8"})), 0);
  down();
}

INSTANTIATE_TEST_SUITE_P(Phases, PoolLossTest,
                         ::testing::Values("1:load:3", "2:prefill:0", "0:decode:3", "1:decode:3"),
                         [](const auto& test) {
                           std::string name = "Held" + test.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST_F(PoolTest, ADeadWorkerIsReportedEndsItsRunAndGoesDownWithThePool) {
  up(2);
  const pid_t victim = await_state(2, "waiting").pid;
  ProgramCall call = attached({"-n", "8", "--instance", "user"});
  call.environment["CONVOY_TEST_HOLD"] = "1:decode:3";
  Process coordinator(call);
  await_state(1, "held", "p");
  send_signal(victim, SIGKILL);
  const Ended ended = coordinator.wait(stretched(2));
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr("stage 2 (pid " + std::to_string(victim) + ", device cpu)"));
  EXPECT_EQ(stage(2).state, "dead");
  const Ended answer = run(convoy({"health", "--instance", "p"}));
  EXPECT_EXIT_CODE(answer, 1);
  EXPECT_THAT(answer.out, ::testing::HasSubstr("dead"));
  await_state(1, "waiting");
  const Ended again = run(attached({"-n", "8"}));
  EXPECT_EXIT_CODE(again, 1);
  EXPECT_THAT(error_line(again.err), ::testing::HasSubstr("stage 2"));
  down();
}

TEST_F(PoolTest, AStoppedWorkerStillGoesDown) {
  up(2);
  send_signal(await_state(1, "waiting").pid, SIGSTOP);
  down();
}

TEST_F(PoolTest, NamesAreCheckedByUpAndDownAndAttach) {
  up(1);
  const Ended twice = run(convoy({"up", "p"}));
  EXPECT_EXIT_CODE(twice, 1);
  EXPECT_THAT(error_line(twice.err), ::testing::HasSubstr("instance 'p' is already running"));
  EXPECT_EQ(await_state(1, "waiting").well, true);

  const Ended unknown = run(convoy({"down", "nobody"}));
  EXPECT_EXIT_CODE(unknown, 1);
  EXPECT_THAT(error_line(unknown.err), ::testing::HasSubstr("no pool 'nobody' is running"));
  const Ended attach = run(generate({"--attach", "nobody", "-p", kPrompt}));
  EXPECT_EXIT_CODE(attach, 1);
  EXPECT_THAT(error_line(attach.err), ::testing::HasSubstr("no pool 'nobody' is running"));
  EXPECT_EXIT_CODE(run(convoy({"up", "../evil"})), 2);

  Process coordinator(held_generate(cpus(2), "1:decode:3", {"--instance", "run"}));
  await_state(1, "held", "run");
  const Ended not_a_pool = run(convoy({"down", "run"}));
  EXPECT_EXIT_CODE(not_a_pool, 1);
  EXPECT_THAT(error_line(not_a_pool.err), ::testing::HasSubstr("is a run, not a pool"));
  coordinator.signal(SIGINT);
  coordinator.wait();
  down();
}

TEST_F(PoolTest, ACardThatIsNotThereIsRefusedByName) {
  ProgramCall none = convoy({"up", "--devices", "0"});
  none.environment["CUDA_VISIBLE_DEVICES"] = "";
  const Ended ended = run(none);
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("device 'cuda:0': "));
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("no CUDA"));
  const Ended another = run(convoy({"up", "--devices", "cuda:99"}));
  EXPECT_EXIT_CODE(another, 1);
  EXPECT_THAT(error_line(another.err), ::testing::HasSubstr("device 'cuda:99'"));
  EXPECT_EQ(ended.out + another.out, "");
  EXPECT_FALSE(fs::exists(runtime));
}

TEST_F(PoolTest, AutoOfTheEnvironmentIsNoDevice) {
  ProgramCall call = convoy({"up", "p"});
  call.environment["CONVOY_DEVICES"] = "auto";
  EXPECT_EXIT_CODE(run(call), 0);
  EXPECT_EQ(stage(1, "p").all.at("device").as_string(), "cpu");
  down();
}

// The folder and the log in it go with the workers.
TEST_F(PoolTest, AWorkerThatDoesNotStartIsQuoted) {
  const fs::path worker = scratch.path() / "convoy-stage-worker";
  write_file(worker, "#!/bin/sh\necho first >&2\necho the moon is full >&2\nexit 5\n");
  fs::permissions(worker, fs::perms::owner_all);
  ProgramCall call = convoy({"up", "p"});
  call.environment["CONVOY_BIN_DIR"] = scratch.path();
  const Ended ended = run(call);
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err),
              ::testing::HasSubstr("exited with code 5; its last log line: the moon is full"));
  EXPECT_EQ(error_line(ended.err).find(runtime.native()), std::string::npos);
}

TEST_F(PoolTest, ARuntimeDirectoryWithoutRoomForSocketsIsRefusedBeforeAnythingStarts) {
  runtime = scratch.path() / std::string(100, 'x');
  const Ended ended = run(convoy({"up", "p"}));
  EXPECT_EXIT_CODE(ended, 1);
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("at most 107 are possible"));
  EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("convoy: socket path"));
  EXPECT_FALSE(fs::exists(runtime));
}

TEST_F(PoolTest, OneThatNobodyCanBeToldOfIsTakenDown) {
  const Ended closed = run(redirected(convoy({"up", "p", "--devices", cpus(2)}), ">&-"));
  EXPECT_EXIT_CODE(closed, 1);
  EXPECT_EQ(error_line(closed.err), "convoy: cannot write to stdout: Bad file descriptor");
  expect_nothing_left();

  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd(ends[0]).reset();
  const UniqueFd writer(ends[1]);
  ProgramCall unread = convoy({"up", "p", "--devices", cpus(2)});
  unread.stdout_fd = writer.get();
  EXPECT_EQ(run(unread).signal, SIGPIPE);
  expect_nothing_left();
}

TEST_F(PoolTest, RefusesMoreDevicesThanRankZeroAndAModelThatHasTooFewLayers) {
  up(1);
  EXPECT_EXIT_CODE(run(attached({"--devices", cpus(2)})), 2);
  EXPECT_EXIT_CODE(run(attached({"--devices", "0"})), 2);
  EXPECT_EXIT_CODE(run(attached({"--stage-layers", "5,4,3"})), 2);
  // An error of the model while loading is the run's, not the pool's.
  EXPECT_EXIT_CODE(run(attached({"-n", "4"})), 0);
  down();
}

UniqueFd connect_to(const std::filesystem::path& socket_path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path.c_str(),
              std::min(socket_path.native().size(), sizeof(address.sun_path) - 1));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
      << std::strerror(errno);
  return fd;
}

// Connects to a pool worker's control socket, writes `bytes`, and reads until the worker closes or
// for a moment.
void send_junk(const std::filesystem::path& socket_path, const std::string& bytes) {
  const UniqueFd fd = connect_to(socket_path);
  [[maybe_unused]] const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  const timeval patience{0, 100'000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char sink[4096];
  while (::recv(fd.get(), sink, sizeof(sink), 0) > 0) {
  }
}

std::string frame_of(const std::string& payload) {
  std::string frame;
  for (unsigned i = 0; i < 4; ++i) frame += static_cast<char>((payload.size() >> (8 * i)) & 0xFFU);
  return frame + payload;
}

TEST_F(PoolTest, JunkConnectionsHarmNobody) {
  up(1);
  const pid_t worker = await_state(1, "waiting").pid;
  const std::string hello_99("\x0A\x02\x08\x63", 4);  // ToWorker{hello{protocol_version: 99}}
  const std::string good_hello("\x0A\x02\x08\x03", 4);
  const std::string get_health("\x22\x00", 2);
  const std::vector<std::pair<const char*, std::string>> junk{
      {"nothing", ""},
      {"garbage", std::string(5000, '\xA7')},
      {"zero length", std::string(4, '\0')},
      {"oversized", std::string("\x01\x00\x10\x00", 4) + std::string(100, 'x')},
      {"not protobuf", frame_of(std::string(64, '\xFF'))},
      {"many bad frames at once",
       frame_of("\xFF\xFF") + frame_of("\xFF\xFF") + frame_of("\xFF\xFF")},
      {"wrong version", frame_of(hello_99)},
      {"no Hello", frame_of(get_health)},
      {"half a frame", frame_of(good_hello).substr(0, 6)},
      {"Hello and half a frame", frame_of(good_hello) + std::string("\x10\x00\x00\x00"
                                                                    "ab",
                                                                    6)},
      {"empty message", frame_of(good_hello) + frame_of(std::string("\x7A\x00", 2))},
      // LoadStage{model_directory: "/nowhere"} and OpenLinks without descriptors.
      {"a model that is not there",
       frame_of(good_hello) + frame_of(std::string("\x12\x0A\x0A\x08/nowhere", 12))},
      {"links before a stage", frame_of(good_hello) + frame_of(std::string("\x1A\x02\x08\x10", 4))},
      {"an admission before a stage", frame_of(good_hello) + frame_of(std::string("\x3A\x00", 2))},
      {"Release before a stage", frame_of(good_hello) + frame_of(std::string("\x2A\x00", 2))},
  };
  for (const auto& [what, bytes] : junk) {
    send_junk(runtime / "p" / "stage-1.sock", bytes);
    EXPECT_EQ(await_state(1, "waiting").pid, worker) << what;
    const Ended ended = run(attached({"-n", "4"}));
    EXPECT_TRUE(ended.exit_code == 0 && ended.out == ", there was a")
        << what << ": " << ended.exit_code << " " << ended.err;
  }
  down();
}

std::string number_field(int field, int value) {
  return {static_cast<char>(field << 3), static_cast<char>(value)};
}
std::string bytes_field(int field, const std::string& bytes) {
  std::string text{static_cast<char>(field << 3 | 2)};
  if (bytes.size() > 127) text += static_cast<char>(bytes.size() % 128 | 0x80);
  text += static_cast<char>(bytes.size() > 127 ? bytes.size() / 128 : bytes.size());
  return text + bytes;
}

// Connects to a pool worker, has it load a layer with KV as `kv_dtype`, and gives what it answers
// until it says an error.
std::string answer_to_load(const std::filesystem::path& socket_path, int kv_dtype) {
  const std::string plan = number_field(1, 1) + bytes_field(2, "cpu") + number_field(4, 1);
  const std::string limits = number_field(1, 64) + number_field(2, 64) + number_field(3, 1) +
                             number_field(4, 1) + number_field(6, kv_dtype);
  const std::string load = bytes_field(1, bundled_model_path().native()) + bytes_field(2, plan) +
                           bytes_field(3, limits) + number_field(4, 2);
  const std::string bytes =
      frame_of(std::string("\x0A\x02\x08\x03", 4)) + frame_of(bytes_field(2, load));
  const UniqueFd fd = connect_to(socket_path);
  EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  const timeval patience{5, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string answer;
  char part[4096];
  for (ssize_t got = 1; got > 0 && answer.find("devices") == std::string::npos;) {
    got = ::recv(fd.get(), part, sizeof(part), 0);
    if (got > 0) answer.append(part, static_cast<size_t>(got));
  }
  return answer;
}

TEST_F(PoolTest, AStageWithAKvDtypeThatItsDeviceLacksIsRefusedByName) {
  up(1);
  await_state(1, "waiting");
  const auto socket = runtime / "p" / "stage-1.sock";
  EXPECT_THAT(answer_to_load(socket, 3), ::testing::HasSubstr("KV dtype fp8 on cpu devices"));
  await_state(1, "waiting");
  EXPECT_THAT(answer_to_load(socket, 9), ::testing::HasSubstr("KV dtype 9 on cpu devices"));
  await_state(1, "waiting");
  EXPECT_EQ(run(attached({"-n", "4", "--kv-dtype", "int8"})).exit_code, 0);
  down();
}

TEST_F(PoolTest, ALostWorkerIsNotDescribedByTheLogOfEarlierRuns) {
  up(1);
  const pid_t worker = await_state(1, "waiting").pid;
  answer_to_load(runtime / "p" / "stage-1.sock", 3);
  await_state(1, "waiting");
  ProgramCall call = attached({"-n", "8"});
  call.environment["CONVOY_TEST_HOLD"] = "1:decode:3";
  Process coordinator(call);
  await_state(1, "held", "p");
  send_signal(worker, SIGKILL);
  const Ended ended = coordinator.wait();
  EXPECT_EXIT_CODE(ended, 3);
  EXPECT_EQ(error_line(ended.err), "convoy: stage 1 (pid " + std::to_string(worker) +
                                       ", device cpu) closed its control connection");
  EXPECT_EXIT_CODE(run(convoy({"health"})), 1);  // sweeps the folder of the dead pool
}

TEST_F(PoolTest, AVisitorThatSaysNothingKeepsTheWorkerOnlyForSeconds) {
  up(1);
  await_state(1, "waiting");
  const UniqueFd visitor = connect_to(runtime / "p" / "stage-1.sock");
  const Ended busy = run(attached({"-n", "1"}));
  EXPECT_EXIT_CODE(busy, 1);
  EXPECT_THAT(error_line(busy.err), ::testing::HasSubstr("serves another coordinator"));
  EXPECT_TRUE(eventually([&] { return run(attached({"-n", "1"})).exit_code == 0; }));
  down();
}

// While a worker frees what the last run left, the next one waits; it is neither refused nor
// dropped.
TEST_F(PoolTest, ANewcomerWaitsUntilTheLastRunIsPutAway) {
  up(1);
  await_state(1, "waiting");
  UniqueFd last = connect_to(runtime / "p" / "stage-1.sock");
  const std::string bytes = frame_of(std::string("\x0A\x02\x08\x03", 4)) +
                            frame_of(std::string("\x2A\x00", 2));  // Hello, Release
  ASSERT_EQ(::send(last.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  Process newcomer(attached({"-n", "4", "--instance", "user"}));
  EXPECT_TRUE(eventually([&] { return leftover_folders().size() == 2; }));
  EXPECT_FALSE(eventually([&] { return !alive(newcomer.pid()); }, Seconds(0.3)));
  last.reset();
  const Ended ended = newcomer.wait();
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_EQ(ended.out, ", there was a");
  down();
}

}  // namespace
}  // namespace convoy::testing
