// What a person types: devices, numbers, names, help, the plan, variables of the environment.
#include "tests/integration/generate_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

TEST_F(GenerateTest, DevicesAndLayersAreCheckedBeforeAnythingStarts) {
  expect_error({"-p", "x", "--devices", "cpu,0"}, 2,
               {"--devices", "'cpu' and 'cuda:0' cannot be mixed"});
  expect_error({"-p", "x", "--devices", "cpu,tpu"}, 2, {"--devices", "'tpu'"});
  expect_error({"-p", "x", "--devices", ""}, 2, {"--devices"});
  expect_error({"-p", "x", "--devices", cpus(13)}, 2, {"13 stages", "12 layers"});
  expect_error({"-p", "x", "--devices", cpus(2), "--stage-layers", "5,4,3"}, 2,
               {"--stage-layers", "3 stages", "2"});
  expect_error({"-p", "x", "--devices", cpus(2), "--stage-layers", "5,4"}, 2,
               {"--stage-layers 5,4", "9", "12"});
  expect_error({"-p", "x", "--devices", cpus(2), "--stage-layers", "0,12"}, 2, {"--stage-layers"});
  expect_error({"-p", "x", "--prefill-chunk", "100"}, 2, {"--prefill-chunk 100", "64"});
  expect_error({"-p", "x", "--log-level", "loud"}, 2, {"--log-level"});
  expect_error({"-p", "x", "-t", "0"}, 2, {"--threads"});
  EXPECT_FALSE(std::filesystem::exists(runtime));
}

TEST_F(GenerateTest, ADeviceThatIsNotThereIsAnErrorOfTheStart) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a driver";
  for (const char* devices : {"0", "0,0", "GPU-5e9d7a3c-1b2f-4a6d-8c0e-9f1a2b3c4d5e"}) {
    const Ended ended = run(generate({"-p", "x", "--devices", devices}));
    EXPECT_EXIT_CODE(ended, 1);
    EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr("CUDA"));
  }
}

TEST_F(GenerateTest, NumbersAreReadAsTheyAreWritten) {
  const auto seed = as_json({"-p", kPrompt, "-n", "1", "--temperature", "1", "--seed", "010"});
  EXPECT_EQ(seed.at("sampling").at("seed").to_number<uint64_t>(), 10U);
  const auto largest =
      as_json({"-p", kPrompt, "-n", "1", "--temperature", "1", "--seed", "18446744073709551615"});
  EXPECT_EQ(largest.at("sampling").at("seed").to_number<uint64_t>(), UINT64_MAX);
  expect_error({"--prompt-ids", "423,434,258,395", "-c", "003"}, 4, {"4 tokens", "holds 3"});
  for (const char* text : {"-1", "18446744073709551616", "99999999999999999999999", "0x10", "1.5",
                           "1e3", " 1", "+1", "1_000", ""})
    expect_error({"-p", kPrompt, "--seed", text}, 2,
                 {std::string("--seed: '") + text + "' is no whole number from 0 to"});
  expect_error({"-p", kPrompt, "--top-k", "99999999999999999999"}, 2, {"--top-k"});
  expect_error({"-p", kPrompt, "-n", "4294967296"}, 2, {"--max-tokens"});
  expect_error({"-p", kPrompt, "-n", "0x3"}, 2, {"--max-tokens", "'0x3'"});
  expect_error({"-p", kPrompt, "--temperature", "nan"}, 2, {"--temperature"});
  expect_error({"-p", kPrompt, "--host-cache-gib", "nan"}, 2, {"--host-cache-gib", "'nan'"});
  const Ended lengths = run(convoy({"bench", "-m", bundled_model_path().native(), "--devices",
                                    "cpu", "--prompt-lengths", "8,0x10"}));
  EXPECT_EXIT_CODE(lengths, 2);
  EXPECT_THAT(lengths.err, ::testing::HasSubstr("--prompt-lengths: '0x10'"));
}

// What is wrong whatever the model is a usage error; what another model could do is a request that
// this one refuses.
TEST_F(GenerateTest, ABiasBeyondTheVocabularyIsARefusedRequest) {
  expect_error({"-p", kPrompt, "--logit-bias", "4096=1"}, 4,
               {"logit_bias names token 4096; allowed are 0 to 4095"});
  expect_error({"-p", kPrompt, "--logit-bias", "-1=1"}, 2, {"logit_bias names token -1"});
  expect_error({"-p", kPrompt, "--logit-bias", "5"}, 2, {"--logit-bias: '5' is not ID=VALUE"});
}

TEST_F(GenerateTest, ABiasIsGivenOnceATokenAndMayBeInfinite) {
  expect_error({"-p", kPrompt, "--logit-bias", "5=1", "--logit-bias", "5=2"}, 2,
               {"--logit-bias: token 5 is named twice"});
  // 11 is what would follow; 5 is what has to.
  const auto object = as_json({"-p", kPrompt, "-n", "2", "--logit-bias", "5=inf", "--logit-bias",
                               "11=-inf", "--logit-bias", "7=0.5"});
  EXPECT_EQ(to_ids(object.at("token_ids")), (std::vector<int>{5, 5}));
  const json::object& bias = object.at("sampling").at("logit_bias").as_object();
  EXPECT_EQ(bias.at("5").as_string(), "inf");
  EXPECT_EQ(bias.at("11").as_string(), "-inf");
  EXPECT_EQ(bias.at("7").to_number<double>(), 0.5);
}

TEST_F(GenerateTest, WhatWouldBeIgnoredOrCannotBeIsAUsageError) {
  expect_error({"-p", kPrompt, "--logprobs", "3"}, 2, {"--logprobs", "--json"});
  expect_error({"-p", kPrompt, "--save-state", ""}, 2, {"--save-state has no file name"});
  expect_error({"--load-state", ""}, 2, {"--load-state has no file name"});
  const Words chat{"chat", "-m", bundled_model_path().native(), "--devices", "cpu"};
  Words none = chat;
  none.insert(none.end(), {"-n", "0"});
  expect_error(convoy(none), 2, {"--max-tokens", "not in range 1 to 2147483647"});
  Words system = chat;
  system.insert(system.end(), {"--system", "\xff"});
  expect_error(convoy(system), 4, {"--system is not well-formed UTF-8"});
}

TEST_F(GenerateTest, NamesOfInstancesAreWords) {
  for (const std::string& name : std::vector<std::string>{
           "", "a/b", "..", ".hidden", "a b", "\xC3\xA9", "a-name-of-33-letters-is-too-long-"}) {
    const std::vector<std::string> said{"instance name '" + name + "' is not a word of 1 to 32"};
    expect_error(convoy({"up", name, "--devices", "cpu"}), 2, said);
    expect_error(convoy({"down", name}), 2, said);
    expect_error(convoy({"health", "--instance", name}), 2, said);
    expect_error({"-p", kPrompt, "--instance", name}, 2, said);
    expect_error({"-p", kPrompt, "--attach", name}, 2, said);
  }
  EXPECT_FALSE(fs::exists(runtime));
}

TEST_F(GenerateTest, UnknownFlagsAndCommandsAreUsageErrors) {
  expect_error({"-p", "x", "--bogus"}, 2, {"--bogus"});
  expect_error({"-p", "x", "surplus"}, 2, {"surplus"});
  expect_error(convoy({"fly"}), 2, {"fly"});
  ProgramCall nothing = convoy({});
  nothing.arguments.clear();
  expect_error(nothing, 2, {"--help"});
}

TEST_F(GenerateTest, VersionAndHelpAreComplete) {
  for (const Words& words : {Words{"--version"}, Words{"generate", "--version"}}) {
    const Ended version =
        run({.program = CONVOY_COORDINATOR, .arguments = words, .environment = {}, .input = {}});
    EXPECT_EXIT_CODE(version, 0);
    EXPECT_THAT(version.out, ::testing::ContainsRegex("^convoy [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
  }
  const Ended help = run(generate({"--help"}));
  EXPECT_EXIT_CODE(help, 0);
  for (const char* option : {"-m,--model",
                             "--devices",
                             "--stage-layers",
                             "-p,--prompt",
                             "-f,--prompt-file",
                             "--prompt-ids",
                             "--specials",
                             "-n,--max-tokens",
                             "-c,--max-context",
                             "--prefill-chunk",
                             "--stop",
                             "--ignore-eos",
                             "--greedy",
                             "--print-token-ids",
                             "-t,--threads",
                             "--json",
                             "--pace",
                             "--log-level",
                             "--quiet",
                             "--version",
                             "--attach",
                             "--instance",
                             "--runtime-dir",
                             "CONVOY_MODEL",
                             "CONVOY_DEVICES",
                             "CONVOY_STAGE_LAYERS",
                             "CONVOY_MAX_CONTEXT",
                             "CONVOY_PREFILL_CHUNK",
                             "CONVOY_THREADS",
                             "CONVOY_RUNTIME_DIR",
                             "CONVOY_LOG_LEVEL"}) {
    EXPECT_THAT(help.out, ::testing::HasSubstr(option));
  }
  const Ended top = run(convoy({"--help"}));
  for (const char* command : {"generate", "plan", "up", "down", "health", "Exit codes"})
    EXPECT_THAT(top.out, ::testing::HasSubstr(command));
}

TEST_F(GenerateTest, PlanSaysBeforehandWhatARunTakes) {
  const Words split{
      "-m",  bundled_model_path().native(), "--devices", cpus(3), "--stage-layers", "5,4,3", "-c",
      "1000"};
  Words plan{"plan", "--json"};
  plan.insert(plan.end(), split.begin(), split.end());
  Words words{"-p", kPrompt, "-n", "1"};
  words.insert(words.end(), split.begin(), split.end());
  const auto planned = json_of(run(convoy(plan)));
  const auto taken = as_json(words);
  EXPECT_EQ(planned.at("max_context").as_int64(), 1000);
  EXPECT_EQ(planned.at("page_groups").as_int64(), 16);
  for (size_t rank = 0; rank < 3; ++rank) {
    for (const char* field : {"rank", "device", "layers", "weight_bytes", "kv_bytes"}) {
      EXPECT_EQ(planned.at("stages").at(rank).at(field), taken.at("stages").at(rank).at(field))
          << field << " of rank " << rank;
    }
  }
  plan.erase(plan.begin() + 1);
  const Ended table = run(convoy(plan));
  EXPECT_EXIT_CODE(table, 0);
  EXPECT_THAT(table.out, ::testing::ContainsRegex("stage +device +layers +weights"));
  EXPECT_THAT(table.out, ::testing::ContainsRegex("1 +cpu +5-8 "));
}

class TwinTest : public GenerateTest {
 protected:
  ProgramCall with(const char* variable, const std::string& value, Words words = {}) const {
    words.insert(words.end(), {"-p", kPrompt, "-n", "2", "--json", "--quiet"});
    ProgramCall call = generate(std::move(words));
    call.environment[variable] = value;
    return call;
  }
};

TEST_F(TwinTest, AFlagWinsOverTheEnvironmentAndThatOverTheDefault) {
  const auto stages = [](const Ended& ended) {
    return json_of(ended).at("stages").as_array().size();
  };
  EXPECT_EQ(stages(run(with("CONVOY_DEVICES", cpus(3)))), 3U);
  EXPECT_EQ(stages(run(with("CONVOY_DEVICES", cpus(3), {"--devices", cpus(2)}))), 2U);
  EXPECT_EQ(stages(run(with("CONVOY_DEVICES", ""))), 1U);
  ProgramCall layers = with("CONVOY_STAGE_LAYERS", "11,1", {"--devices", cpus(2)});
  EXPECT_EQ(to_ids(json_of(run(layers)).at("stages").at(1).at("layers")),
            (std::vector<int>{11, 12}));
  // The flag's value counts, even where the variable's would be refused.
  EXPECT_EXIT_CODE(run(with("CONVOY_PREFILL_CHUNK", "63", {"--prefill-chunk", "64"})), 0);
  ProgramCall model = with("CONVOY_MODEL", bundled_model_path().native());
  std::erase(model.arguments, "-m");
  std::erase(model.arguments, bundled_model_path().native());
  EXPECT_EQ(json_of(run(model)).at("model").as_string(), bundled_model_path().native());
  model.environment["CONVOY_MODEL"] = "/nowhere";
  EXPECT_EXIT_CODE(run(model), 1);
}

TEST_F(TwinTest, ABadValueIsRefusedByTheVariablesName) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"CONVOY_DEVICES", "cpu,0"},     {"CONVOY_DEVICES", "tpu"},
      {"CONVOY_STAGE_LAYERS", "1,x"},  {"CONVOY_MAX_CONTEXT", "many"},
      {"CONVOY_PREFILL_CHUNK", "100"}, {"CONVOY_PREFILL_CHUNK", "-1"},
      {"CONVOY_THREADS", "0"},         {"CONVOY_THREADS", "0x2"},
      {"CONVOY_LOG_LEVEL", "loud"},    {"CONVOY_INSTANCE", "a/b"}};
  for (const auto& [variable, value] : cases) {
    const Ended ended = run(with(variable, value));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_THAT(error_line(ended.err), ::testing::HasSubstr(variable)) << value;
  }
}

}  // namespace
}  // namespace convoy::testing
