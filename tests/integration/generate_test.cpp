// What convoy generate gives: prompts, limits, stops, output and JSON.
#include <csignal>

#include "tests/integration/generate_test.h"

namespace convoy::testing {
namespace {

namespace fs = std::filesystem;

// Greedy continuation of kPrompt by the bundled model, as reference.json has it: ids 11 396 282 258
// 390 465 407 403 13 …
constexpr const char* kNineTokens = ", there was a little girl named Lily.";

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
TEST_F(GenerateTest, ADrawnSeedIsSaidAndGivesTheTextAgain) {
  const Ended drawn = run(generate({"-p", kPrompt, "-n", "20", "--temperature", "1"}));
  const size_t at = drawn.err.find("; seed ");
  ASSERT_NE(at, std::string::npos) << drawn.err;
  const std::string seed = drawn.err.substr(at + 7, drawn.err.find(';', at + 1) - at - 7);
  EXPECT_EQ(quiet({"-p", kPrompt, "-n", "20", "--temperature", "1", "--seed", seed}).out,
            drawn.out);
  EXPECT_EQ(run(generate({"-p", kPrompt, "-n", "1"})).err.find("seed"), std::string::npos)
      << "greedy";
}

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

TEST_F(GenerateTest, APromptThatDoesNotFitIsToldWhatMakesRoom) {
  const Words words{"--prompt-ids", "423,434,258,395", "--devices", "cpu"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return generate(all);
  };
  expect_error(with({"-c", "3"}), 4, {"has 4 tokens", "the context holds 3; raise --max-context"});
  expect_error(with({"--kv-capacity", "3"}), 4, {"holds 3; raise --kv-capacity"});
  ProgramCall twin = with({});
  twin.environment["CONVOY_MAX_CONTEXT"] = "3";
  expect_error(twin, 4, {"holds 3; raise CONVOY_MAX_CONTEXT"});
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

}  // namespace
}  // namespace convoy::testing
