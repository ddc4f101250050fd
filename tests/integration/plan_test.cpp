// `convoy plan`: the verdict before anything is loaded, and that runs keep to it.
#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanTest : public ConvoyTest {
 protected:
  ProgramCall plan(Words words) const {
    words.insert(words.begin(), "plan");
    return convoy(std::move(words));
  }
  static Words on(int stages, Words more = {}) {
    more.insert(more.end(), {"-m", bundled_model_path().native(), "--devices", cpus(stages)});
    return more;
  }
  json::object planned(Words words) const {
    words.emplace_back("--json");
    return json_of(run(plan(std::move(words))));
  }
};

uint64_t number(const json::object& object, const char* key) {
  return object.at(key).to_number<uint64_t>();
}

TEST_F(PlanTest, NeedsNoWeights) {
  const fs::path model = scratch.path() / "model";
  fs::create_directory(model);
  fs::copy_file(bundled_model_path() / "config.json", model / "config.json");
  const auto bare = planned({"-m", model.native(), "--load-format", "dummy", "--devices", cpus(2)});
  EXPECT_EQ(bare.at("stages"), planned(on(2)).at("stages"));
  EXPECT_TRUE(bare.at("fits").as_bool());
  EXPECT_EQ(bare.at("refusal"), json::value(nullptr));
}

TEST_F(PlanTest, TheDevicesBytesAreTheSumOfTheirStages) {
  const auto object = planned(on(3, {"--memory-limit", "cpu=1GiB"}));
  uint64_t sum = 0;
  for (const json::value& stage : object.at("stages").as_array()) {
    const json::object& s = stage.as_object();
    uint64_t kinds = 0;
    for (const char* kind : {"weight_bytes", "kv_bytes", "state_bytes", "workspace_bytes",
                             "link_bytes", "runtime_bytes"})
      kinds += number(s, kind);
    EXPECT_EQ(number(s, "total_bytes"), kinds);
    EXPECT_EQ(number(s, "kv_bytes"),
              number(s, "bytes_per_page_group") * number(object, "page_groups"));
    sum += kinds;
  }
  ASSERT_EQ(object.at("devices").as_array().size(), 1U);
  const json::object& device = object.at("devices").at(0).as_object();
  EXPECT_EQ(number(device, "needed_bytes"), sum);
  EXPECT_EQ(number(device, "available_bytes"), uint64_t{1} << 30);
}

// What every stage says it took, against what the plan said of it.
TEST_F(PlanTest, BytesOnEveryDeviceEqualThePlan) {
  const Words words = on(3, {"-c", "1000"});
  const auto object = planned(words);
  Process held(held_generate(cpus(3), "2:decode:1", {"-c", "1000"}));
  await_state(2, "held");
  for (size_t rank = 0; rank < 3; ++rank) {
    const json::object& expected = object.at("stages").at(rank).as_object();
    const json::object taken = stage(static_cast<int>(rank)).all;
    for (const char* kind : {"weight_bytes", "kv_bytes", "state_bytes", "workspace_bytes"})
      EXPECT_EQ(number(taken, kind), number(expected, kind)) << kind << " of stage " << rank;
  }
  held.signal(SIGINT);
  held.wait();
}

TEST_F(PlanTest, SaysNoWithDeviceBothNumbersAndTheLargestContext) {
  const Words words = on(2, {"--memory-limit", "cpu=60MiB"});
  Words as_json = words;
  as_json.emplace_back("--json");
  const Ended ended = run(plan(as_json));
  EXPECT_EXIT_CODE(ended, 1);
  const json::object object = json::parse(ended.out).as_object();
  EXPECT_FALSE(object.at("fits").as_bool());
  const uint64_t largest = number(object, "largest_context");
  EXPECT_GT(largest, 64U);
  EXPECT_LT(largest, number(object, "max_context"));
  const json::object& device = object.at("devices").at(0).as_object();
  EXPECT_EQ(number(device, "available_bytes"), uint64_t{60} << 20);
  const auto names_all =
      AllOf(HasSubstr("device cpu"), HasSubstr(std::to_string(number(device, "needed_bytes"))),
            HasSubstr(std::to_string(uint64_t{60} << 20)), HasSubstr(std::to_string(largest)));
  EXPECT_THAT(std::string(object.at("refusal").as_string()), names_all);

  const Ended table = run(plan(words));
  EXPECT_EXIT_CODE(table, 1);
  EXPECT_THAT(table.out, HasSubstr("does not fit"));
  EXPECT_THAT(table.out, names_all);

  // The context that it names does fit, and runs; the refused one is refused before it loads.
  Words fitting = words;
  fitting.insert(fitting.end(), {"-c", std::to_string(largest)});
  EXPECT_EXIT_CODE(run(plan(fitting)), 0);
  fitting.insert(fitting.end(), {"-p", kPrompt, "-n", "2"});
  EXPECT_EXIT_CODE(run(generate(fitting)), 0);
  Words refused = words;
  refused.insert(refused.end(), {"-p", kPrompt, "-n", "2"});
  const Ended run_refused = run(generate(refused));
  EXPECT_EXIT_CODE(run_refused, 1);
  EXPECT_THAT(error_line(run_refused.err), names_all);
  EXPECT_EQ(run_refused.out, "");
}

TEST_F(PlanTest, CapacityIsWhatTheContextNeedsUnlessAsked) {
  EXPECT_EQ(number(planned(on(1, {"-c", "640"})), "page_groups"), 10U);
  EXPECT_EQ(number(planned(on(1, {"-c", "640", "--kv-capacity", "auto"})), "page_groups"), 10U);
  EXPECT_EQ(number(planned(on(1, {"-c", "640", "--kv-capacity", "1281"})), "page_groups"), 21U);
  const auto small = planned(on(1, {"--kv-capacity", "640"}));
  EXPECT_EQ(number(small, "page_groups"), 10U);
  EXPECT_EQ(number(small, "max_context"), 640U);
}

TEST_F(PlanTest, TheHeadroomStaysFree) {
  const auto available = [&](Words words) {
    return number(planned(on(1, std::move(words))).at("devices").at(0).as_object(),
                  "available_bytes");
  };
  // What is free moves by itself: only the difference of a very large headroom is certain.
  EXPECT_LT(available({"--kv-headroom-mib", "1024"}) + (uint64_t{512} << 20), available({}));
  EXPECT_EXIT_CODE(run(plan(on(1, {"--kv-headroom-mib", "16000000"}))), 1);
}

TEST_F(PlanTest, KvDtypeDecidesWhatAPageTakes) {
  // 4 bytes a value, or 1 and a scale of 2 for every 64.
  const auto page_group_bytes = [&](Words words) {
    const auto object = planned(on(1, std::move(words)));
    const json::object& stage = object.at("stages").at(0).as_object();
    EXPECT_EQ(number(stage, "kv_bytes"),
              number(stage, "bytes_per_page_group") * number(object, "page_groups"));
    return number(stage, "bytes_per_page_group");
  };
  const uint64_t f32 = page_group_bytes({});
  EXPECT_EQ(page_group_bytes({"--kv-dtype", "auto"}), f32);
  EXPECT_EQ(page_group_bytes({"--kv-dtype", "f32"}), f32);
  EXPECT_EQ(page_group_bytes({"--kv-dtype", "int8"}), f32 / 4 + f32 / 4 / 64 * 2);
  EXPECT_EQ(planned(on(2, {"--kv-dtype", "int8"})).at("kv_dtype").as_string(), "int8");
  EXPECT_THAT(run(plan(on(2))).out, HasSubstr("KV as f32"));
}

TEST_F(PlanTest, RefusesAKvDtypeThatTheDevicesDoNotHave) {
  const auto refused = [&](const std::string& dtype, const std::string& devices,
                           const std::string& what) {
    const Ended ended =
        run(plan({"-m", bundled_model_path().native(), "--devices", devices, "--kv-dtype", dtype}));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_THAT(ended.err, HasSubstr(what));
    EXPECT_EQ(ended.out, "");
  };
  refused("fp8", "cpu", "--kv-dtype fp8: allowed for CPU devices are auto, f32 and int8");
  refused("bf16", "cpu,cpu", "--kv-dtype bf16: allowed for CPU devices are");
  refused("f32", "cuda:0", "--kv-dtype f32: allowed for CUDA devices are auto, bf16, int8 and fp8");
  refused("int4", "cpu", "int4");
  ProgramCall twin = plan(on(1));
  twin.environment["CONVOY_KV_DTYPE"] = "fp8";
  const Ended ended = run(twin);
  EXPECT_EXIT_CODE(ended, 2);
  EXPECT_THAT(ended.err, HasSubstr("CONVOY_KV_DTYPE fp8: allowed for CPU devices are"));
}

TEST_F(PlanTest, RefusesBadMemoryOptionsByName) {
  const auto refused = [&](Words words, const std::string& what) {
    const Ended ended = run(plan(on(2, std::move(words))));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_THAT(ended.err, HasSubstr(what));
    EXPECT_EQ(ended.out, "");
  };
  refused({"--memory-limit", "cpu=20"}, "cpu=20");
  refused({"--memory-limit", "0=1GiB"}, "cuda:0, which is not among the run's devices");
  refused({"--kv-capacity", "0"}, "--kv-capacity");
  refused({"--kv-capacity", "640x"}, "640x");
  refused({"--kv-capacity", "640", "-c", "641"}, "--max-context 641");
  refused({"--kv-headroom-mib", "-1"}, "--kv-headroom-mib");
  refused({"--split-by", "luck"}, "luck");
  refused({"--device-speed", "cpu=1"}, "--split-by speed");
  ProgramCall twin = plan(on(1));
  twin.environment["CONVOY_MEMORY_LIMIT"] = "cpu=much";
  const Ended ended = run(twin);
  EXPECT_EXIT_CODE(ended, 2);
  EXPECT_THAT(ended.err, HasSubstr("CONVOY_MEMORY_LIMIT"));
}

TEST_F(PlanTest, RefusesByTheNameOfTheVariableThatSaidIt) {
  const auto refused = [&](std::map<std::string, std::string> environment,
                           const std::string& what) {
    ProgramCall call = plan({"-m", bundled_model_path().native()});
    call.environment = std::move(environment);
    call.environment.emplace("CONVOY_DEVICES", "cpu");
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_EQ(error_line(ended.err).find("convoy: " + what), 0U) << ended.err;
  };
  refused({{"CONVOY_MAX_CONTEXT", "10000"}},
          "CONVOY_MAX_CONTEXT 10000 is more than the model's 4096");
  refused({{"CONVOY_STAGE_LAYERS", "3,9"}}, "CONVOY_STAGE_LAYERS names 2 stages, CONVOY_DEVICES 1");
  refused({{"CONVOY_KV_CAPACITY", "64"}, {"CONVOY_MAX_CONTEXT", "65"}},
          "CONVOY_KV_CAPACITY 64 is less than CONVOY_MAX_CONTEXT 65");
  refused({{"CONVOY_SPLIT_BY", "speed"}, {"CONVOY_DEVICE_SPEED", "0=1"}}, "CONVOY_DEVICE_SPEED");
  refused({{"CONVOY_DEVICES", "cpu;cpu,cpu"}},
          "CONVOY_DEVICES: 'cpu;cpu,cpu' names several device sets (; is between them), which "
          "convoy bench alone takes");
}

TEST_F(PlanTest, SaysTheLargestCapacityWhereTheContextFits) {
  const auto with = [&](int tokens) {
    return run(
        plan(on(2, {"--memory-limit", "cpu=200MiB", "--kv-capacity", std::to_string(tokens)})));
  };
  const Ended refused = with(1 << 24);
  EXPECT_EXIT_CODE(refused, 1);
  const std::string before = "the largest --kv-capacity that fits is ";
  const size_t at = refused.out.find(before);
  ASSERT_NE(at, std::string::npos) << refused.out;
  const int largest = std::stoi(refused.out.substr(at + before.size()));
  EXPECT_EXIT_CODE(with(largest), 0);
  EXPECT_EXIT_CODE(with(largest + 1), 1);
}

TEST_F(PlanTest, SpeedsThatNobodyGaveAreMeasuredOncePerDevice) {
  // Other tests measure, too, and take memory.
  const auto temporary = scratch.path() / "temporary";
  std::filesystem::create_directory(temporary);
  Words words{"--split-by", "speed", "--memory-limit", "cpu=1GiB"};
  ProgramCall measuring = plan(on(3, words));
  measuring.environment["TMPDIR"] = temporary.native();
  const Ended measured = run(measuring);
  EXPECT_EXIT_CODE(measured, 0);
  EXPECT_THAT(measured.err, ::testing::ContainsRegex("^cpu copies [1-9][0-9]* GB/s\n$"));
  words.insert(words.end(), {"--device-speed", "cpu=5"});
  const Ended given = run(plan(on(3, words)));
  EXPECT_EQ(given.out, measured.out) << "all stages are as fast";
  EXPECT_EQ(given.err, "");
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST_F(PlanTest, WithoutGpusAutoIsOneCpuStage) {
  ProgramCall call = plan({"-m", bundled_model_path().native(), "--devices", "auto", "--json"});
  call.environment["CUDA_VISIBLE_DEVICES"] = "";
  const auto object = json_of(run(call));
  ASSERT_EQ(object.at("stages").as_array().size(), 1U);
  EXPECT_EQ(object.at("stages").at(0).at("device").as_string(), "cpu");
}

}  // namespace
}  // namespace convoy::testing
