// What a person types and reads: options, prompts, limits, output and errors of convoy generate.
#include <csignal>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

// Greedy continuation of kPrompt by the bundled model, as reference.json has it: ids 11 396 282 258
// 390 465 407 403 13 …
constexpr const char* kNineTokens = ", there was a little girl named Lily.";

class GenerateTest : public ConvoyTest {
 protected:
  Ended quiet(Words words) const {
    words.emplace_back("--quiet");
    return run(generate(std::move(words)));
  }
  json::object as_json(Words words) const {
    words.emplace_back("--json");
    return json_of(quiet(std::move(words)));
  }
  /// Fails unless the command ends with `code` and one line that holds all of `said`.
  void expect_error(const ProgramCall& call, int code, const std::vector<std::string>& said) const {
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, code);
    for (const std::string& word : said) EXPECT_THAT(ended.err, ::testing::HasSubstr(word));
    EXPECT_EQ(ended.out, "");
  }
  void expect_error(Words words, int code, const std::vector<std::string>& said) const {
    expect_error(generate(std::move(words)), code, said);
  }
};

TEST_F(GenerateTest, TakesThePromptFromAFlagAFileStdinAndIds) {
  const std::string file = (scratch.path() / "prompt").native();
  write_file(file, kPrompt);
  EXPECT_EQ(quiet({"-p", kPrompt, "-n", "9"}).out, kNineTokens);
  EXPECT_EQ(quiet({"--prompt", kPrompt, "--max-tokens", "9"}).out, kNineTokens);
  EXPECT_EQ(quiet({"-f", file, "-n", "9"}).out, kNineTokens);
  EXPECT_EQ(quiet({"--prompt-file", file, "-n", "9"}).out, kNineTokens);
  EXPECT_EQ(quiet({"--prompt-ids", "423,434,258,395", "-n", "9"}).out, kNineTokens);
  for (const Words& words : {Words{"-n", "9", "--quiet"}, Words{"-n", "9", "--quiet", "-f", "-"}}) {
    ProgramCall piped = generate(words);
    piped.input = kPrompt;
    const Ended ended = run(piped);
    EXPECT_EXIT_CODE(ended, 0);
    EXPECT_EQ(ended.out, kNineTokens);
  }
}

TEST_F(GenerateTest, RefusesPromptsItCannotUse) {
  expect_error({"-p", ""}, 4, {"the prompt is empty"});
  expect_error({"-p", "\xFF\xFE"}, 4, {"not valid UTF-8"});
  expect_error({"-p", "caf\xC3"}, 4, {"not valid UTF-8"});
  expect_error({"-f", (scratch.path() / "nowhere").native()}, 2, {"--prompt-file", "nowhere"});
  expect_error({"-f", scratch.path().native()}, 2, {"--prompt-file"});
  expect_error({"--prompt-ids", "1,x"}, 2, {"--prompt-ids", "'x'"});
  expect_error({"--prompt-ids", "1,-1"}, 4, {"-1"});
  expect_error({"--prompt-ids", "4096"}, 4, {"4096"});
  expect_error({"--prompt-ids", "99999999999"}, 2, {"--prompt-ids"});
  expect_error({"-p", "a", "-f", "b"}, 2, {"--prompt"});
  ProgramCall empty = generate({});
  empty.input = "";
  expect_error(empty, 4, {"the prompt is empty"});
  // A NUL, a byte order mark and white space are text like any other.
  for (const std::string& text :
       {std::string("\0", 1), std::string("\xEF\xBB\xBFHello"), std::string(" \n")}) {
    ProgramCall piped = generate({"-n", "2", "--quiet"});
    piped.input = text;
    EXPECT_EXIT_CODE(run(piped), 0);
  }
}

TEST_F(GenerateTest, AnInputThatCannotBeReadIsNoEndOfIt) {
  ProgramCall tokenize{.program = CONVOY_COORDINATOR,
                       .arguments = {"tokenize", "-m", bundled_model_path().native()},
                       .environment = {},
                       .input = {}};
  for (const ProgramCall& call :
       {generate({"-n", "1"}), generate({"-n", "1", "-f", "-"}), generate({"--messages", "-"}),
        generate({"--parallel", "2", "-n", "1"}), tokenize}) {
    expect_error(redirected(call, "</"), 1, {"convoy: cannot read stdin: Is a directory"});
    expect_error(redirected(call, "<&-"), 1, {"convoy: cannot read stdin: Bad file descriptor"});
  }
}

TEST_F(GenerateTest, ControlTokensAreTextUnlessAskedFor) {
  EXPECT_EQ(as_json({"-p", "<|im_end|>", "-n", "0", "--specials"}).at("prompt_tokens").as_int64(),
            1);
  EXPECT_GT(as_json({"-p", "<|im_end|>", "-n", "0"}).at("prompt_tokens").as_int64(), 3);
  EXPECT_EQ(
      as_json({"-p", "a<|endoftext|>", "-n", "0", "--specials"}).at("prompt_tokens").as_int64(), 2);
}

TEST_F(GenerateTest, GivesExactlyAsManyTokensAsAskedFor) {
  const std::vector<std::string> texts{"", ",", ", there"};
  for (int n = 0; n < 3; ++n) {
    const auto object = as_json({"-p", kPrompt, "-n", std::to_string(n), "--devices", cpus(2)});
    EXPECT_EQ(object.at("completion_tokens").as_int64(), n);
    EXPECT_EQ(object.at("token_ids").as_array().size(), static_cast<size_t>(n));
    EXPECT_EQ(object.at("text").as_string(), texts[static_cast<size_t>(n)]);
    EXPECT_EQ(object.at("finish_reason").as_string(), "length");
    EXPECT_EQ(quiet({"-p", kPrompt, "-n", std::to_string(n)}).out, texts[static_cast<size_t>(n)]);
  }
  expect_error({"-p", kPrompt, "-n", "-1"}, 2,
               {"--max-tokens: Value -1 not in range 0 to 2147483647\n"});
}

struct StopCase {
  std::vector<const char*> strings;
  const char* max_tokens;
  const char* text;
  size_t tokens;
  const char* reason;
};

TEST_F(GenerateTest, StopStringsEndTheTextBeforeThem) {
  const std::vector<StopCase> cases{
      {{"ttle girl na"}, "40", ", there was a li", 5, "stop"},  // begins and ends inside tokens
      {{","}, "40", "", 0, "stop"},                             // the first token
      {{" girl named", " girl"}, "40", ", there was a little", 5, "stop"},  // one inside the other
      {{" a little girl", "little"},
       "40",
       ", there was a ",
       5,
       "stop"},                                        // the one completed first wins
      {{" little"}, "5", ", there was a", 4, "stop"},  // completed by the last token allowed
      {{" little girl"},
       "5",
       ", there was a little",
       5,
       "length"},  // not completed: what was held back is shown
      {{"Lily.", "never said"}, "40", ", there was a little girl named ", 8, "stop"},
      {{"never said"}, "9", kNineTokens, 9, "length"},
  };
  for (const StopCase& c : cases) {
    Words words{"-p", kPrompt, "-n", c.max_tokens};
    for (const char* text : c.strings) words.insert(words.end(), {"--stop", text});
    const auto object = as_json(words);
    EXPECT_EQ(object.at("text").as_string(), c.text) << c.strings.front();
    EXPECT_EQ(object.at("token_ids").as_array().size(), c.tokens) << c.strings.front();
    EXPECT_EQ(object.at("completion_tokens").as_int64(), static_cast<int64_t>(c.tokens))
        << c.strings.front();
    EXPECT_EQ(object.at("finish_reason").as_string(), c.reason) << c.strings.front();
    EXPECT_TRUE(object.at("stop_id").is_null()) << c.strings.front();
    EXPECT_EQ(quiet(words).out, c.text) << c.strings.front();
  }
  expect_error({"-p", kPrompt, "--stop", ""}, 2, {"--stop: stop string 0 is empty"});
  expect_error({"-p", kPrompt, "--stop", "a", "--stop", "\xFF"}, 2,
               {"--stop: stop string 1 is not valid UTF-8"});
  const fs::path lines = scratch.path() / "lines";
  write_file(lines, kPrompt);
  expect_error({"--parallel", "2", "-f", lines, "--stop", ""}, 2, {"--stop: stop string 0"});
}

TEST_F(GenerateTest, EosEndsTheTextUnlessIgnored) {
  // The dragon's story of reference.json: 158 tokens, then <|im_end|>.
  const json::value references = json::parse(read_file(bundled_model_path() / "reference.json"));
  const std::string prompt = references.at(5).at("prompt").as_string().c_str();
  const auto stopped = as_json({"-p", prompt, "--specials", "-n", "170"});
  EXPECT_EQ(stopped.at("stop_id").as_int64(), 4079);
  EXPECT_EQ(stopped.at("completion_tokens").as_int64(), 158);
  const auto ignored = as_json({"-p", prompt, "--specials", "-n", "170", "--ignore-eos"});
  EXPECT_EQ(ignored.at("completion_tokens").as_int64(), 170);
  EXPECT_EQ(ignored.at("finish_reason").as_string(), "length");
  EXPECT_TRUE(ignored.at("stop_id").is_null());
  // Special tokens have no text.
  EXPECT_TRUE(ignored.at("text").as_string().starts_with(stopped.at("text").as_string()));
  EXPECT_EQ(ignored.at("text").as_string().find("<|"), json::string::npos);
}

TEST_F(GenerateTest, PrintsIdsOneALine) {
  EXPECT_EQ(quiet({"-p", kPrompt, "-n", "4", "--print-token-ids"}).out, "11\n396\n282\n258\n");
}

// As many as --json and --parallel have: none of a stop string's, though they came before its end.
TEST_F(GenerateTest, PrintsNoIdThatAStopStringCutsOff) {
  const Words words{"-p", kPrompt, "-n", "30", "--stop", "named Lily"};
  const auto ids = to_ids(as_json(words).at("token_ids"));
  std::string lines;
  for (const int id : ids) lines += std::to_string(id) + "\n";
  Words printed = words;
  printed.emplace_back("--print-token-ids");
  EXPECT_EQ(quiet(printed).out, lines);
  ProgramCall parallel = generate(
      {"--parallel", "2", "-n", "30", "--stop", "named Lily", "--print-token-ids", "--quiet"});
  parallel.input = kPrompt;
  EXPECT_EQ(run(parallel).out, lines.substr(0, lines.size() - 1) + "\n\f\n");
}

TEST_F(GenerateTest, SaysProgressAndASummaryOnStderrUnlessQuiet) {
  const Ended ended = run(generate({"-p", kPrompt, "-n", "9", "--devices", cpus(3)}));
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_EQ(ended.out, kNineTokens);
  EXPECT_THAT(
      ended.err,
      ::testing::ContainsRegex(
          "prompt: 4 tokens, [0-9.]+ tok/s; answer: 9 tokens, [0-9.]+ tok/s; length; loaded in"));
  EXPECT_THAT(ended.err,
              ::testing::ContainsRegex("stage +pid +device +layers +weights +kv +busy +waiting"));
  EXPECT_EQ(quiet({"-p", kPrompt, "-n", "1", "--devices", cpus(3)}).err, "");
}

// Where stderr is no terminal, a line every two seconds.
TEST_F(GenerateTest, SaysHowFarEachStageHasLoaded) {
  Process coordinator(held_generate(cpus(3), "1:load:5"));
  EXPECT_TRUE(eventually([&] { return coordinator.err().find("loading: ") != std::string::npos; }));
  EXPECT_THAT(coordinator.err(), ::testing::ContainsRegex(
                                     "loading: stage 0 100% stage 1 [1-9][0-9]?% stage 2 100%\n"));
  coordinator.signal(SIGINT);
  EXPECT_EQ(coordinator.wait().signal, SIGINT);
}

TEST_F(GenerateTest, PaceIsKeptAndShown) {
  const auto object = as_json({"-p", kPrompt, "-n", "11", "--pace", "20"});
  EXPECT_EQ(object.at("pace_tok_s").to_number<double>(), 20);
  const auto decode_s = object.at("timings").at("decode_s").to_number<double>();
  EXPECT_GT(decode_s, 0.4);
  EXPECT_LT(decode_s, 1.5 * CONVOY_TEST_TIME_FACTOR);
  EXPECT_THAT(run(generate({"-p", kPrompt, "-n", "2", "--pace", "20"})).err,
              ::testing::HasSubstr("(paced at 20 tok/s)"));
  expect_error({"-p", kPrompt, "--pace", "0"}, 2, {"--pace"});
}

TEST_F(GenerateTest, JsonHasEveryFieldOfItsSchema) {
  const auto object =
      as_json({"-p", kPrompt, "-n", "9", "--devices", cpus(3), "--stage-layers", "5,4,3"});
  std::vector<std::string> keys;
  for (const auto& entry : object) keys.emplace_back(entry.key());
  EXPECT_THAT(keys, ::testing::IsSupersetOf({"schema", "version", "model", "text", "token_ids",
                                             "prompt_tokens", "completion_tokens", "finish_reason",
                                             "stop_id", "timings", "stages"}));
  EXPECT_EQ(object.at("schema").as_int64(), 1);
  EXPECT_EQ(object.at("model").as_string(), bundled_model_path().native());
  EXPECT_EQ(object.at("text").as_string(), kNineTokens);
  for (const char* timing : {"load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"}) {
    EXPECT_GT(object.at("timings").at(timing).to_number<double>(), 0) << timing;
  }
  const std::vector<std::vector<int>> layers{{0, 5}, {5, 9}, {9, 12}};
  for (size_t rank = 0; rank < 3; ++rank) {
    const json::object& stage = object.at("stages").at(rank).as_object();
    EXPECT_EQ(stage.at("rank").to_number<size_t>(), rank);
    EXPECT_GT(stage.at("pid").to_number<int>(), 1);
    EXPECT_EQ(stage.at("device").as_string(), "cpu");
    EXPECT_EQ(to_ids(stage.at("layers")), layers[rank]);
    EXPECT_GT(stage.at("weight_bytes").to_number<uint64_t>(), 1'000'000U);
    EXPECT_GT(stage.at("kv_bytes").to_number<uint64_t>(), 0U);
    EXPECT_GT(stage.at("busy_s").to_number<double>(), 0);
    EXPECT_GE(stage.at("wait_s").to_number<double>(), 0);
  }
}

TEST_F(GenerateTest, ErrorsAreJsonTooWhereJsonIsAskedFor) {
  struct Case {
    Words words;
    int code;
    const char* name;
  };
  const std::vector<Case> cases{{{"-p", "", "--json"}, 4, "request_refused"},
                                {{"-p", "x", "-m", "/nowhere", "--json"}, 1, "start_failed"},
                                {{"-p", "x", "--devices", "cpu,0", "--json"}, 2, "usage"}};
  for (const auto& [words, code, name] : cases) {
    const Ended ended = run(generate(words));
    EXPECT_EXIT_CODE(ended, code);
    const json::value object = json::parse(ended.out);
    EXPECT_EQ(object.at("error").at("code").as_string(), name);
    EXPECT_EQ("convoy: " + std::string(object.at("error").at("message").as_string()),
              error_line(ended.err));
  }
}

TEST_F(GenerateTest, TheContextIsALimitThatIsExplained) {
  const std::string four = "423,434,258,395";
  expect_error({"--prompt-ids", four, "-c", "3"}, 4, {"4 tokens", "holds 3"});
  const auto full = as_json({"--prompt-ids", four, "-c", "4"});
  EXPECT_EQ(full.at("completion_tokens").as_int64(), 1);
  EXPECT_EQ(full.at("finish_reason").as_string(), "length");
  // The last token needs no place of its own.
  EXPECT_EQ(as_json({"--prompt-ids", four, "-c", "5"}).at("completion_tokens").as_int64(), 2);
  EXPECT_EQ(as_json({"--prompt-ids", four, "-c", "70", "--ignore-eos", "--devices", cpus(2)})
                .at("completion_tokens")
                .as_int64(),
            67);
  expect_error({"-p", "x", "-c", "4097"}, 2, {"4097", "4096"});
  expect_error({"-p", "x", "-c", "0"}, 2, {"--max-context"});
}

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
