// Attaching to workers that wait, whose part a test plays.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <fstream>

#include "shared/control/instance_directory.h"
#include "shared/control/unix_socket.h"
#include "tests/unit/coordinator/pool_fixture.h"

namespace convoy {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

using AttachTest = PoolFixture;

TEST_F(AttachTest, AttachingToNobodyIsAStartError) {
  WorkerPool pool;
  try {
    pool.attach(directory_.path(), plan_of(2));
    ADD_FAILURE() << "attached to nobody";
  } catch (const StartError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot attach stage 1"), HasSubstr("stage-1.sock")));
  }
}

class AttachedWorkerTest : public PoolFixture {
 protected:
  AttachedWorkerTest() : listener_(listen_unix(control_socket_path(directory_.path(), 1))) {
    std::ofstream(log()) << "an earlier run failed\n";
  }
  fs::path log() const { return worker_log_path(directory_.path(), 1); }
  void attach(WorkerPool& pool) {
    pool.attach(directory_.path(), plan_of(2));
    peer_.reset(::accept4(listener_.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  void say_hello(bool busy = false) {
    proto::FromWorker hello;
    hello.mutable_hello()->set_protocol_version(kProtocolVersion);
    hello.mutable_hello()->set_role("stage_worker");
    hello.mutable_hello()->set_pid(12345);
    hello.mutable_hello()->set_busy(busy);
    const std::string frame = encode_frame(hello);
    ASSERT_EQ(::send(peer_.get(), frame.data(), frame.size(), 0),
              static_cast<ssize_t>(frame.size()));
  }
  static WorkerFailure failure_to_load(WorkerPool& pool) {
    try {
      pool.begin_load(plan_of(2), {});
      pool.wait_loaded([] {});
    } catch (const FatalError& error) {
      return {error.code(), error.what()};
    }
    return {ExitCode::done, "(no failure)"};
  }

  Result<UniqueFd> listener_;
  UniqueFd peer_;
};

TEST_F(AttachedWorkerTest, ThatGoesIsAFailureWithoutAChild) {
  WorkerPool pool;
  attach(pool);
  say_hello();
  pool.begin_load(plan_of(2), {});
  peer_.reset();
  const WorkerFailure failure = failure_to_load(pool);
  EXPECT_EQ(failure.code, ExitCode::engine_died);
  EXPECT_EQ(failure.message, "stage 1 (pid 12345, device cpu) closed its control connection");
}

TEST_F(AttachedWorkerTest, IsQuotedWithWhatItLoggedSinceItsHello) {
  WorkerPool pool;
  attach(pool);
  say_hello();
  pool.begin_load(plan_of(2), {});
  std::ofstream(log(), std::ios::app) << "this run failed\n";
  peer_.reset();
  EXPECT_EQ(failure_to_load(pool).message,
            "stage 1 (pid 12345, device cpu) closed its control connection; its last log line: "
            "this run failed");
}

TEST_F(AttachedWorkerTest, ThatServesAnotherIsNamedByItsHello) {
  WorkerPool pool;
  attach(pool);
  say_hello(true);
  EXPECT_EQ(failure_to_load(pool).message,
            "stage 1 (pid 12345, device cpu) serves another coordinator");
}

TEST_F(AttachedWorkerTest, ThatSaysNothingIsNamedAsItsPoolDoesOrWithoutPid) {
  for (const bool listed : {false, true}) {
    if (listed) {
      std::ofstream(directory_.path() / "instance.json")
          << R"({"schema":1,"name":"p","kind":"pool","members":[{"rank":1,"pid":77,"role":)"
          << R"("stage_worker","device":"cpu","uuid":"","layers":[0,0]}]})";
    }
    WorkerPool pool({.hello_ms = 100});
    attach(pool);
    EXPECT_EQ(failure_to_load(pool).message, std::string("stage 1 (") + (listed ? "pid 77, " : "") +
                                                 "device cpu) did not say Hello within 0.1 s");
    peer_.reset();
  }
}

}  // namespace
}  // namespace convoy
