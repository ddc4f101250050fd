// convoy probe with CPU devices: two real processes, both directions.
#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using ProbeTest = ConvoyTest;

TEST_F(ProbeTest, MeasuresEverySizeAndSaysWhatTheDeviceIs) {
  const json::object result =
      json_of(run(convoy({"probe", "--devices", "cpu", "--rounds", "3", "--json"})));
  EXPECT_EQ(result.at("schema").as_int64(), 1);
  const json::array& devices = result.at("devices").as_array();
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].at("id").as_string(), "cpu");
  EXPECT_EQ(devices[0].at("kind").as_string(), "cpu");
  EXPECT_GT(devices[0].at("free_bytes").to_number<uint64_t>(), 0U);
  EXPECT_TRUE(result.at("peer_access").as_array().empty());
  const json::array& links = result.at("links").as_array();
  ASSERT_EQ(links.size(), 1U);
  EXPECT_EQ(links[0].at("from").as_string(), "cpu");
  EXPECT_EQ(links[0].at("to").as_string(), "cpu");
  EXPECT_EQ(links[0].at("transport").as_string(), "host");
  const json::array& sizes = links[0].at("sizes").as_array();
  ASSERT_EQ(sizes.size(), 7U);
  EXPECT_EQ(sizes.front().at("bytes").to_number<int>(), 10 << 10);
  EXPECT_EQ(sizes.back().at("bytes").to_number<int>(), 32 << 20);
  for (const json::value& size : sizes) {
    EXPECT_GT(size.at("p50_us").to_number<double>(), 0.0);
    EXPECT_GE(size.at("p99_us").to_number<double>(), size.at("p50_us").to_number<double>());
    EXPECT_GT(size.at("gib_per_s").to_number<double>(), 0.0);
  }
}

TEST_F(ProbeTest, PrintsATable) {
  const Ended ended = run(convoy({"probe", "--devices", "cpu,cpu", "--rounds", "2"}));
  EXPECT_EXIT_CODE(ended, 0);
  for (const char* word : {"architecture", "transport", "p99 us", "10.0 KiB", "32.0 MiB", "host"})
    EXPECT_THAT(ended.out, ::testing::HasSubstr(word));
  EXPECT_THAT(ended.err, ::testing::HasSubstr("measuring cpu and cpu"));
}

TEST_F(ProbeTest, RefusesDevicesThatAreNotThere) {
  const Ended no_device = run(convoy({"probe", "--devices", "tpu"}));
  EXPECT_EXIT_CODE(no_device, 2);
  EXPECT_THAT(error_line(no_device.err), ::testing::HasSubstr("'tpu' is no device"));
  const Ended no_card = run(convoy({"probe", "--devices", "cuda:99"}));
  EXPECT_EXIT_CODE(no_card, 1);
  EXPECT_THAT(error_line(no_card.err), ::testing::HasSubstr("device 'cuda:99'"));
  EXPECT_EQ(no_card.out, "");
}

TEST_F(ProbeTest, APlanForACardThatIsNotThereNeedsItsMemoryLimit) {
  ProgramCall plan = convoy({"plan", "-m", bundled_model_path().native(), "--devices", "0,cuda:0"});
  plan.environment["CUDA_VISIBLE_DEVICES"] = "";
  const Ended unknown = run(plan);
  EXPECT_EXIT_CODE(unknown, 1);
  EXPECT_THAT(error_line(unknown.err), ::testing::HasSubstr("device 'cuda:0'"));
  EXPECT_THAT(error_line(unknown.err), ::testing::HasSubstr("--memory-limit"));
  EXPECT_EQ(unknown.out, "");
  plan.arguments.insert(plan.arguments.end(), {"--memory-limit", "0=8GiB"});
  const Ended known = run(plan);
  EXPECT_EXIT_CODE(known, 0);
  EXPECT_THAT(known.out, ::testing::HasSubstr("of 8.0 GiB available"));
}

TEST_F(ProbeTest, AutoOfTheEnvironmentIsNoDevice) {
  ProgramCall call = convoy({"probe", "--rounds", "1", "--json"});
  call.environment["CONVOY_DEVICES"] = "auto";
  call.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(json_of(run(call)).at("devices").at(0).at("id").as_string(), "cpu");
}

TEST_F(ProbeTest, LinkFlagsAreCheckedAgainstTheDevices) {
  const Ended peer = run(generate({"-p", kPrompt, "-n", "1", "--link", "peer"}));
  EXPECT_EXIT_CODE(peer, 2);
  EXPECT_THAT(error_line(peer.err), ::testing::HasSubstr("--link peer"));
  ProgramCall from_environment = generate({"-p", kPrompt, "-n", "1"});
  from_environment.environment["CONVOY_DOORBELL"] = "events";
  const Ended events = run(from_environment);
  EXPECT_EXIT_CODE(events, 2);
  EXPECT_THAT(error_line(events.err), ::testing::HasSubstr("CONVOY_DOORBELL events"));
  const Ended probe = run(convoy({"probe", "--devices", "cpu", "--doorbell", "memops"}));
  EXPECT_EXIT_CODE(probe, 2);
  EXPECT_THAT(error_line(probe.err), ::testing::HasSubstr("--doorbell memops"));
  const Words fine{"-p",      kPrompt,  "-n",   "9",          "--quiet", "--devices",
                   "cpu,cpu", "--link", "auto", "--doorbell", "host"};
  EXPECT_EQ(run(generate(fine)).out, ", there was a little girl named Lily.");
}

TEST_F(ProbeTest, ASignalLeavesNoProcessAndNoFolder) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process probing(convoy({"probe", "--devices", "cpu", "--rounds", "100000"}));
    ASSERT_TRUE(eventually([&] { return children_of(probing.pid()).size() == 2; }));
    probing.signal(signal);
    EXPECT_EQ(probing.wait().signal, signal);
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace convoy::testing
