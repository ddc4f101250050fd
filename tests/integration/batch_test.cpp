// convoy generate --parallel: many prompts at once, each answered as if it were alone.
#include <csignal>
#include <sstream>

#include "tests/integration/convoy_test.h"

namespace convoy::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kAnswerEnd = "\n\f\n";

std::string lines_of(const Words& prompts) {
  std::string text;
  for (const std::string& prompt : prompts) text += prompt + "\n";
  return text;
}

Words split_answers(const std::string& out) {
  Words answers;
  size_t begin = 0;
  for (size_t end; (end = out.find(kAnswerEnd, begin)) != std::string::npos; begin = end + 3)
    answers.push_back(out.substr(begin, end - begin));
  EXPECT_EQ(begin, out.size()) << "text after the last answer";
  return answers;
}

std::vector<json::object> objects_of(const std::string& out) {
  std::vector<json::object> objects;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) objects.push_back(json::parse(line).as_object());
  return objects;
}

class BatchTest : public ConvoyTest {
 protected:
  // Twenty prompts of many lengths, the longest of several chunks and pages.
  static Words mixed_prompts() {
    const Words stems{kPrompt, "The dog", "One day, a boy named Tim found a big red ball", "A",
                      "Lily was sad because"};
    Words prompts;
    for (int i = 0; i < 20; ++i) {
      std::string prompt = stems[static_cast<size_t>(i) % stems.size()];
      for (int j = 0; j < i * i / 4; ++j) prompt += " and then he saw a cat";
      prompts.push_back(prompt);
    }
    return prompts;
  }
  ProgramCall batch(const Words& prompts, Words words) const {
    const std::string file = (scratch.path() / "prompts").native();
    write_file(file, lines_of(prompts));
    words.insert(words.end(), {"-f", file, "--prefill-chunk", "128"});
    return generate(std::move(words));
  }
  std::string alone(const std::string& prompt, Words words) const {
    words.insert(words.end(), {"-p", prompt, "--quiet"});
    const Ended ended = run(generate(std::move(words)));
    EXPECT_EXIT_CODE(ended, 0);
    return ended.out;
  }
};

struct Shape {
  int stages;
  int parallel;
};

class BatchShapeTest : public BatchTest, public ::testing::WithParamInterface<Shape> {};

TEST_P(BatchShapeTest, EveryAnswerIsThatOfItsPromptAlone) {
  const Words prompts = mixed_prompts();
  const auto [stages, parallel] = GetParam();
  for (const Words& mode : {Words{}, Words{"--temperature", "0.9", "--seed", "7"}}) {
    SCOPED_TRACE(mode.empty() ? "greedy" : "sampled");
    Words options{"-n", "40", "--stop", "mom", "--stop", "happy"};
    options.insert(options.end(), mode.begin(), mode.end());
    Words in_batch{"--devices", cpus(stages), "--parallel", std::to_string(parallel), "--quiet"};
    in_batch.insert(in_batch.end(), options.begin(), options.end());
    ProgramCall call = batch(prompts, in_batch);
    const Ended ended = run(call);
    EXPECT_EXIT_CODE(ended, 0);
    EXPECT_EQ(ended.err, "");
    call.environment["CONVOY_TEST_RUN_AHEAD"] = "1";
    EXPECT_EQ(run(call).out, ended.out) << "the device runs ahead of the host";
    const Words answers = split_answers(ended.out);
    ASSERT_EQ(answers.size(), prompts.size());
    // Every program run takes its time: of the sampled ones some.
    for (size_t i = 0; i < prompts.size(); i += mode.empty() ? 1 : 4)
      EXPECT_EQ(answers[i], alone(prompts[i], options)) << prompts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchShapeTest,
                         ::testing::Values(Shape{1, 1}, Shape{1, 3}, Shape{1, 16}, Shape{4, 1},
                                           Shape{4, 3}, Shape{4, 16}),
                         [](const auto& test) {
                           return std::to_string(test.param.stages) + "Stages" +
                                  std::to_string(test.param.parallel) + "Lanes";
                         });

// Four lanes, but page groups for two of these requests: nobody may fail half-way.
TEST_F(BatchTest, PromptsWaitWhilePageGroupsAreFew) {
  const Words prompts{kPrompt, "The dog", "A", "One day", "Lily was sad because", "Tom"};
  const Ended ended =
      run(batch(prompts, {"--devices", cpus(2), "--parallel", "4", "-n", "70", "--ignore-eos",
                          "--kv-capacity", "256", "-c", "128", "--quiet"}));
  EXPECT_EXIT_CODE(ended, 0);
  EXPECT_EQ(ended.err, "");
  const Words answers = split_answers(ended.out);
  ASSERT_EQ(answers.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(answers[i], alone(prompts[i], {"-n", "70", "--ignore-eos"})) << prompts[i];
}

TEST_F(BatchTest, JsonIsALineForEveryPromptInTheirOrder) {
  const Words prompts{kPrompt, "The dog", "A"};
  const auto objects = objects_of(run(batch(prompts, {"--devices", cpus(2), "--parallel", "2", "-n",
                                                      "9", "--json", "--logprobs", "1"}))
                                      .out);
  ASSERT_EQ(objects.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const json::object single =
        json_of(run(generate({"-p", prompts[i], "-n", "9", "--json", "--logprobs", "1"})));
    EXPECT_EQ(objects[i].at("line").to_number<size_t>(), i + 1);
    for (const char* key : {"text", "token_ids", "logprobs", "prompt_tokens", "completion_tokens",
                            "finish_reason", "stop_id", "sampling", "schema", "version"})
      EXPECT_EQ(objects[i].at(key), single.at(key)) << key;
  }
}

TEST_F(BatchTest, ARefusedLineHarmsNoOther) {
  std::string endless;
  for (int i = 0; i < 200; ++i) endless += " cat";
  const Words prompts{kPrompt, "", endless, "caf\xC3", "The dog"};
  const Words options{"--devices", cpus(2), "--parallel", "2", "-n", "9", "-c", "100"};
  Words quiet = options;
  quiet.emplace_back("--quiet");
  const Ended plain = run(batch(prompts, quiet));
  EXPECT_EXIT_CODE(plain, 4);
  EXPECT_THAT(split_answers(plain.out), ::testing::ElementsAre(alone(kPrompt, {"-n", "9"}), "", "",
                                                               "", alone("The dog", {"-n", "9"})));
  EXPECT_THAT(plain.err, HasSubstr("convoy: line 2: the prompt is empty"));
  EXPECT_THAT(plain.err, HasSubstr("convoy: line 3: the prompt has "));
  EXPECT_THAT(plain.err, HasSubstr("convoy: line 4: prompt: "));

  Words as_json = quiet;
  as_json.emplace_back("--json");
  const Ended ended = run(batch(prompts, as_json));
  EXPECT_EXIT_CODE(ended, 4);
  const auto objects = objects_of(ended.out);
  ASSERT_EQ(objects.size(), 5U);
  EXPECT_EQ(objects[1].at("line").to_number<int>(), 2);
  EXPECT_EQ(objects[1].at("error").at("code").as_string(), "request_refused");
  EXPECT_EQ(objects[4].at("finish_reason").as_string(), "length");
}

TEST_F(BatchTest, OnlyRefusedLinesLoadNothing) {
  const Ended ended = run(batch({"", ""}, {"--parallel", "2", "--devices", cpus(2)}));
  EXPECT_EXIT_CODE(ended, 4);
  EXPECT_EQ(ended.out, std::string(kAnswerEnd) + kAnswerEnd);
  EXPECT_FALSE(std::filesystem::exists(runtime));
  const Ended none = run(batch({}, {"--parallel", "2"}));
  EXPECT_EXIT_CODE(none, 4);
  EXPECT_THAT(error_line(none.err), HasSubstr("there is no prompt"));
}

TEST_F(BatchTest, TakesStdinAndLinesOfEitherEnd) {
  ProgramCall call = generate({"--parallel", "2", "-n", "9", "--quiet"});
  call.input = std::string(kPrompt) + "\r\nThe dog";
  const Words answers = split_answers(run(call).out);
  EXPECT_THAT(answers,
              ::testing::ElementsAre(alone(kPrompt, {"-n", "9"}), alone("The dog", {"-n", "9"})));
  call.environment["CONVOY_PARALLEL"] = "2";
  call.arguments = generate({"-n", "9", "--quiet"}).arguments;
  EXPECT_EQ(split_answers(run(call).out), answers);
}

TEST_F(BatchTest, OtherPromptsAndPaceAreRefusedByName) {
  for (const Words& words : {Words{"-p", "x"}, Words{"--prompt-ids", "1"}}) {
    Words all{"--parallel", "2"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run(generate(all));
    EXPECT_EXIT_CODE(ended, 2);
    EXPECT_THAT(error_line(ended.err), HasSubstr("--parallel takes its prompts from"));
  }
  EXPECT_EXIT_CODE(run(batch({"x"}, {"--parallel", "2", "--pace", "9"})), 2);
  EXPECT_EXIT_CODE(run(batch({"x"}, {"--parallel", "0"})), 2);
  EXPECT_EXIT_CODE(run(batch({"x"}, {"--parallel", "17"})), 2);
}

TEST_F(BatchTest, CtrlCGivesEveryPromptItsLineAndEndsByThatSignal) {
  for (const int held : {0, 1}) {
    ProgramCall call = batch({kPrompt, "The dog", "A"}, {"--devices", cpus(2), "--parallel", "2",
                                                         "-n", "40", "--quiet", "--json"});
    call.environment["CONVOY_TEST_HOLD"] = std::to_string(held) + ":decode:3";
    Process coordinator(call);
    await_state(held, "held");
    coordinator.signal(SIGINT);
    const Ended ended = coordinator.wait(stretched(3));
    EXPECT_TRUE(ended.in_time);
    EXPECT_EQ(ended.signal, SIGINT) << ended.err;
    const auto objects = objects_of(ended.out);
    ASSERT_EQ(objects.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(objects[i].at("finish_reason").as_string(), "cancelled");
      EXPECT_EQ(objects[i].at("token_ids").as_array().size(), i < 2 ? 4U : 0U);
    }
    EXPECT_EQ(objects[0].at("text").as_string(), ", there was a");
    expect_nothing_left();
  }
}

TEST_F(BatchTest, ALostStageEndsTheBatchAndAnswersThatWereToldStand) {
  for (const char* hold : {"1:prefill:1", "1:decode:3"}) {
    ProgramCall call = batch({"", kPrompt, "The dog", "A"}, {"--devices", cpus(3), "--parallel",
                                                             "2", "-n", "40", "--quiet", "--json"});
    call.environment["CONVOY_TEST_HOLD"] = hold;
    Process coordinator(call);
    await_state(1, "held");
    send_signal(stage(1).pid, SIGKILL);
    const Ended ended = coordinator.wait(stretched(3));
    EXPECT_EXIT_CODE(ended, 3);
    EXPECT_THAT(ended.err, HasSubstr("stage 1 (pid "));
    EXPECT_THAT(ended.err, HasSubstr("killed by signal 9"));
    const auto objects = objects_of(ended.out);
    ASSERT_EQ(objects.size(), 2U);
    EXPECT_EQ(objects[0].at("line").to_number<int>(), 1);
    EXPECT_EQ(objects[1].at("error").at("code").as_string(), "engine_died");
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace convoy::testing
