#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/exit_code.h"
#include "shared/control/frame.h"
#include "shared/control/health_client.h"
#include "shared/control/health_server.h"
#include "shared/control/unix_socket.h"
#include "tests/unit/control/temporary_directory.h"

namespace convoy {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

proto::StageHealth description() {
  proto::StageHealth text;
  text.set_rank(3);
  text.set_device("cpu");
  text.set_layer_begin(4);
  text.set_layer_end(9);
  text.set_weight_bytes(123456789012);
  return text;
}

TEST(HealthState, SnapshotSaysWhatWasSet) {
  HealthState state;
  state.set_description(description());
  state.set_state(proto::StageHealth::RUNNING);
  state.set_load_progress(5, 7);
  state.set_free_bytes(11);
  state.set_page_groups_used(13);
  state.add_traffic(100, 200);
  state.add_traffic(1, 2);
  state.add_step(0.5, 0.25);
  const proto::StageHealth health = state.snapshot();
  EXPECT_EQ(health.protocol_version(), kProtocolVersion);
  EXPECT_EQ(health.pid(), ::getpid());
  EXPECT_EQ(health.rank(), 3U);
  EXPECT_EQ(health.device(), "cpu");
  EXPECT_EQ(health.layer_end(), 9U);
  EXPECT_EQ(health.weight_bytes(), 123456789012U);
  EXPECT_EQ(health.state(), proto::StageHealth::RUNNING);
  EXPECT_EQ(health.loaded_bytes(), 5U);
  EXPECT_EQ(health.total_load_bytes(), 7U);
  EXPECT_EQ(health.free_bytes(), 11U);
  EXPECT_EQ(health.page_groups_used(), 13U);
  EXPECT_EQ(health.received_bytes(), 101U);
  EXPECT_EQ(health.sent_bytes(), 202U);
  EXPECT_EQ(health.steps(), 1U);
  EXPECT_DOUBLE_EQ(health.busy_s(), 0.5);
  EXPECT_DOUBLE_EQ(health.wait_s(), 0.25);
  EXPECT_DOUBLE_EQ(health.last_step_ms(), 500);
}

TEST(HealthState, PercentilesAreOfTheLastSteps) {
  HealthState state;
  for (int i = 0; i < 1000; ++i) state.add_step(9.0, 0);  // forgotten
  for (int ms = 256; ms >= 1; --ms) state.add_step(ms * 1e-3, 0);
  const proto::StageHealth health = state.snapshot();
  EXPECT_EQ(health.steps(), 1256U);
  EXPECT_NEAR(health.p50_step_ms(), 128, 1.01);
  EXPECT_NEAR(health.p95_step_ms(), 243, 1.01);
  EXPECT_NEAR(health.last_step_ms(), 1, 1e-3);
}

TEST(HealthState, NoStepMeansNoStepTimes) {
  const proto::StageHealth health = HealthState().snapshot();
  EXPECT_EQ(health.last_step_ms(), 0);
  EXPECT_EQ(health.since_last_step_s(), 0);
}

TEST(HealthState, ResetForgetsTheStageButNotTheLastError) {
  HealthState state;
  state.set_description(description());
  state.set_free_bytes(5);
  state.add_step(1, 1);
  state.set_failed("the disk is on fire");
  EXPECT_EQ(state.state(), proto::StageHealth::FAILED);
  state.reset(proto::StageHealth::WAITING);
  const proto::StageHealth health = state.snapshot();
  EXPECT_EQ(health.state(), proto::StageHealth::WAITING);
  EXPECT_EQ(health.last_error(), "the disk is on fire");
  EXPECT_EQ(health.steps(), 0U);
  EXPECT_EQ(health.weight_bytes(), 0U);
  EXPECT_EQ(health.free_bytes(), 0U);
  EXPECT_EQ(health.busy_s(), 0);
  EXPECT_EQ(health.pid(), ::getpid());
}

TEST(HealthState, ReadersAndTheComputingThreadDoNotDisturbEachOther) {
  HealthState state;
  std::atomic<bool> done{false};
  std::thread computing([&] {
    for (int i = 0; i < 20'000; ++i) {
      state.add_step(1e-3, 1e-3);
      state.add_traffic(1, 1);
    }
    done = true;
  });
  uint64_t last = 0;
  while (!done) {
    const proto::StageHealth health = state.snapshot();
    EXPECT_GE(health.steps(), last);
    EXPECT_GE(health.since_last_step_s(), 0);
    last = health.steps();
  }
  computing.join();
  EXPECT_EQ(state.snapshot().steps(), 20'000U);
}

TEST(HealthServer, AnswersWhileTheOwnerIsBusy) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "health-1.sock";
  HealthState state;
  state.set_description(description());
  const HealthServer server(path, state);
  std::atomic<bool> stop{false};
  std::thread owner([&] {  // never yields, never reads a socket
    while (!stop) state.add_step(1e-6, 0);
  });
  for (int i = 0; i < 50; ++i) {
    const auto health = ask_health(path, 10'000);
    ASSERT_TRUE(health.ok()) << health.error();
    EXPECT_EQ(health.value().rank(), 3U);
  }
  stop = true;
  owner.join();
}

TEST(HealthServer, AnswersManyWhileOneClientReadsNothing) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  HealthState state;
  const HealthServer server(path, state);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_unix(path, 10'000).value());
  EXPECT_TRUE(ask_health(path, 10'000).ok());
}

TEST(HealthServer, SocketGoesWithTheServer) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  HealthState state;
  {
    const HealthServer server(path, state);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(ask_health(path).error(), HasSubstr("No such file"));
}

TEST(HealthServer, SocketThatCannotBeMadeIsAStartError) {
  const TemporaryDirectory directory;
  HealthState state;
  EXPECT_THROW(HealthServer(directory.path() / "none" / "s", state), StartError);
  try {
    const HealthServer server(directory.path() / std::string(120, 'x'), state);
    ADD_FAILURE() << "a path too long was accepted";
  } catch (const StartError& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 107"));
  }
}

/// Accepts one client, sends `answer`, and keeps the connection open or closes it.
std::string answer_with(const std::string& answer, bool close, int deadline_ms = 10'000) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  auto listener = listen_unix(path);
  UniqueFd client;
  std::thread server([&] {
    while (!client) {
      client.reset(::accept4(listener.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) std::this_thread::yield();
    }
    (void)!::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    if (close) ::shutdown(client.get(), SHUT_RDWR);
  });
  const auto health = ask_health(path, deadline_ms);
  server.join();
  return health.ok() ? "(no error)" : health.error();
}

TEST(AskHealth, DeadlineHoldsWhenAListeningProcessNeverAnswers) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "s";
  const auto listener = listen_unix(path);  // nobody accepts
  const auto begin = Clock::now();
  const auto health = ask_health(path, 300);
  const auto took = Clock::now() - begin;
  ASSERT_FALSE(health.ok());
  EXPECT_THAT(health.error(), HasSubstr("not answering within 300 ms"));
  EXPECT_GE(took, std::chrono::milliseconds(290));
  EXPECT_LT(took, std::chrono::seconds(3));
}

TEST(AskHealth, DeadlineHoldsWhenTheAnswerStopsInTheMiddle) {
  const std::string frame = encode_frame(HealthState().snapshot());
  EXPECT_THAT(answer_with(frame.substr(0, frame.size() - 1), false, 300),
              HasSubstr("not answering"));
  EXPECT_THAT(answer_with("", false, 300), HasSubstr("not answering"));
}

TEST(AskHealth, ClosedWithoutAnAnswerIsNamed) {
  const std::string frame = encode_frame(HealthState().snapshot());
  EXPECT_THAT(answer_with("", true), HasSubstr("closed without an answer"));
  EXPECT_THAT(answer_with(frame.substr(0, 10), true), HasSubstr("closed without an answer"));
}

TEST(AskHealth, MalformedAnswersAreNamed) {
  EXPECT_THAT(answer_with(std::string("\x04\x00\x00\x00\xff\xff\xff\xff", 8), false),
              HasSubstr("malformed"));
  EXPECT_THAT(answer_with("HTTP/1.1 400 Bad Request", false), HasSubstr("frame length"));
  EXPECT_THAT(answer_with(std::string(4, '\0'), false), HasSubstr("frame length 0"));
}

TEST(AskHealth, OtherProtocolVersionIsNamedWithBothNumbers) {
  proto::StageHealth health = HealthState().snapshot();
  health.set_protocol_version(kProtocolVersion + 41);
  EXPECT_THAT(answer_with(encode_frame(health), false),
              HasSubstr("version 44, this program version 3"));
}

TEST(AskHealth, PathTooLongIsNamed) {
  EXPECT_THAT(ask_health("/tmp/" + std::string(200, 'x')).error(), HasSubstr("at most 107"));
}

}  // namespace
}  // namespace convoy
